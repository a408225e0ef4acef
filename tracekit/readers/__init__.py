"""Readers: one file a trace format."""
