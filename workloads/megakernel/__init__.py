"""The PDL chain as one persistent kernel: an instruction table, counters, and a timeline inside the kernel."""
