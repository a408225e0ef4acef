"""Analyses: pure functions, Trace in, frozen result out."""
