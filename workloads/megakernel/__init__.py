"""The PDL chain as one persistent kernel: instruction table, counters, a timeline inside the kernel.

table -> checker -> packing -> gpu (megakernel.cu) -> tasks; simulator and reference run a table on the CPU.
"""

from workloads.megakernel.workload import SHOWS, TRACED_ARGUMENTS, Options, check, main, run

__all__ = ["SHOWS", "TRACED_ARGUMENTS", "Options", "check", "main", "run"]
