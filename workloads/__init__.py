"""Programs to record: what each shows is in its first line.

A workload is a module with `SHOWS` (one line), frozen options, `run(options) -> Result`, a `check` against
NumPy that every run makes, and `python -m MODULE --result FILE`. It may set `TRACED_ARGUMENTS` (what to
add while a profiler records it, to keep the recording small) and `CAPTURE_RANGE` (it calls
cudaProfilerStart).
"""
