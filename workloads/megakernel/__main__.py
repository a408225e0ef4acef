"""python -m workloads.megakernel"""

import typer

from workloads.megakernel.workload import main

typer.run(main)
