"""Recording: find and run the profiler. Nothing here knows analysis."""
