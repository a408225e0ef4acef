"""An nsys that is a shell script: runs the program, leaves a report, exports a given SQLite file."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

SCRIPT = """\
#!/bin/sh
verb=$1; shift
case $verb in
  --version) echo "NVIDIA Nsight Systems version 2025.3.2.474-0"; exit 0;;
  export)
    while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done
    [ "$FAKE_NSYS" = bad-export ] && { echo "libdw.so.1: cannot open shared object file"; exit 1; }
    cat "${FAKE_NSYS_EXPORT:-$1}" > "$out"; exit 0;;
esac
echo "Collecting data..."
while [ $# -gt 0 ]; do
  case $1 in
    -t|-s) shift 2;;
    -o) report=$2; shift 2;;
    -*) shift;;
    *) break;;
  esac
done
"$@"; code=$?
case $FAKE_NSYS in
  no-report) ;;
  qdstrm) printf recorded > "$report.qdstrm";;
  *) printf recorded > "$report.nsys-rep";;
esac
printf '[1/1] [====100%%====] x.nsys-rep\\rGenerated:\\n\\t/tmp/x.nsys-rep\\n'
exit $code
"""

IMPORTER = """\
#!/bin/sh
cat "$2" > "$4"
"""


def write_program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return path


def write_nsys(folder: Path, *, importer: bool = False) -> Path:
    """The fake nsys in `folder/target-linux-x64`, with an importer beside it as NVIDIA lays them out."""
    if importer:
        write_program(folder / "host-linux-x64/QdstrmImporter", IMPORTER)
    return write_program(folder / "target-linux-x64/nsys", SCRIPT)


def empty_path(folder: Path) -> dict[str, str]:
    """An environment whose PATH holds nothing, and whose cache is inside `folder`."""
    (folder / "empty").mkdir(exist_ok=True)
    return {"PATH": str(folder / "empty"), "TRACEKIT_CACHE": str(folder / "cache"), "HOME": os.devnull}
