"""Measures the real gap between GPU kernels, and what it costs a decode step."""
