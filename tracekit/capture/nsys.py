"""Finds and runs Nsight Systems: profile, import, export to SQLite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture.process import Echo, Finished, end_of_output, run_logged
from tracekit.errors import CaptureError

VARIABLE = "TRACEKIT_NSYS"
GRAPH_LEVELS = ("node", "graph")
INSTALL_HINT = (
    f"install Nsight Systems (package nsight-systems-cli), set {VARIABLE} to its nsys,"
    " or record with --backend cupti"
)
# bars, and the lines around them that only say where a file went
PROGRESS = re.compile(
    r"^\s*$|^\[\d+/\d+\] ?\[|^Generating '.*\.(qdstrm|nsys-rep|sqlite)'|^Generated:|^Collecting data\.\.\."
    r"|^Processing (\d+ )?events|^\s+/\S+\.(qdstrm|nsys-rep|sqlite)$"
)


@dataclass(frozen=True)
class Nsys:
    """An nsys that can be run, and where it was found (`$TRACEKIT_NSYS`, `PATH`, a folder)."""

    path: Path
    found: str
    importer: Path | None = None


@dataclass(frozen=True)
class Recorded:
    """What nsys left: its report, and how the run ended."""

    report: Path
    finished: Finished


@dataclass(frozen=True)
class Recording:
    """What to record: the program, the graph level, and nsys flags of the user's own."""

    command: tuple[str, ...]
    graph_level: str = "node"
    capture_range: bool = False
    nsys_args: tuple[str, ...] = ()


def find_nsys(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> Nsys:
    """The nsys to use: $TRACEKIT_NSYS, PATH, NVIDIA's folders, the CUDA toolkit, then inside Nsight Compute.

    The last is laid out in the cache folder first. `root` is where the folders are looked for.
    Raises CaptureError where there is none, or where the variable names no program.
    """
    environment = os.environ if environment is None else environment
    if named := environment.get(VARIABLE):
        return _named(Path(named))
    for path, found in _candidates(environment, root):
        if _is_program(path):
            return Nsys(path, found, _importer_beside(path))
    for host in _nsight_compute_hosts(root):
        return lay_out(host, cache_folder(environment))
    raise CaptureError(
        f"nsys was not found on PATH, under /opt/nvidia or in the CUDA toolkit: {INSTALL_HINT}"
    )


def _named(path: Path) -> Nsys:
    if not _is_program(path):
        raise CaptureError(f"{VARIABLE} is {path}, which is no program: set it to the path of nsys")
    return Nsys(path, f"${VARIABLE}", _importer_beside(path))


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _candidates(environment: Mapping[str, str], root: Path) -> Iterator[tuple[Path, str]]:
    if on_path := shutil.which("nsys", path=environment.get("PATH", "")):
        yield Path(on_path), "PATH"
    for pattern in (
        "opt/nvidia/nsight-systems*/*/bin/nsys",
        "opt/nvidia/nsight-systems*/*/target-linux-x64/nsys",
        "opt/nvidia/nsight-systems*/bin/nsys",
        "usr/local/cuda*/bin/nsys",
        "usr/local/cuda*/nsight-systems-*/bin/nsys",
        "usr/local/cuda*/nsight-systems-*/target-linux-x64/nsys",
    ):
        for path in _newest_first(root, pattern):
            yield path, str(path.parent)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if toolkit := environment.get(variable):
            yield Path(toolkit) / "bin/nsys", f"${variable}"


def _nsight_compute_hosts(root: Path) -> Iterator[Path]:
    for pattern in ("opt/nvidia/nsight-compute/*/host", "usr/local/cuda*/nsight-compute-*/host"):
        for host in _newest_first(root, pattern):
            if _is_program(host / "target-linux-x64/nsys") and any(host.glob("linux-desktop-*")):
                yield host


def _newest_first(root: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> list[int]:
        return [int(digits) for digits in re.findall(r"\d+", str(path))]

    return sorted(root.glob(pattern), key=version, reverse=True)


def _importer_beside(nsys: Path) -> Path | None:
    folders = (nsys.resolve().parent, nsys.resolve().parent.parent)
    patterns = ("host-linux-*/QdstrmImporter", "linux-desktop-*/QdstrmImporter", "QdstrmImporter")
    for folder in folders:
        for pattern in patterns:
            for path in _newest_first(folder, pattern):
                return path
    return None


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the nsys made from Nsight Compute's parts lies: $TRACEKIT_CACHE, or the user's cache folder."""
    if named := environment.get("TRACEKIT_CACHE"):
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("tracekit")


def lay_out(host: Path, cache: Path) -> Nsys:
    """A working nsys from the parts inside Nsight Compute: target-linux-x64 and host-linux-x64 side by side.

    Files are hard links where the cache folder lies on the same disk, copies otherwise. Raises CaptureError.
    """
    place = cache / f"nsys-{host.parent.name}"
    nsys = place / "target-linux-x64/nsys"
    if not _is_program(nsys):
        try:
            _copy_parts(host, place)
        except (OSError, shutil.Error) as error:
            raise CaptureError(f"{place}: cannot lay out nsys there ({error}); {INSTALL_HINT}") from None
    return Nsys(nsys, f"{host} (inside Nsight Compute)", _importer_beside(nsys))


def _copy_parts(host: Path, place: Path) -> None:
    # built beside and renamed at the end: a run that is cut off leaves no half of it to be found
    building = place.with_name(f"{place.name}.{os.getpid()}")
    desktop = _newest_first(host, "linux-desktop-*")[0]
    for source, name in ((host / "target-linux-x64", "target-linux-x64"), (desktop, "host-linux-x64")):
        shutil.copytree(source, building / name, symlinks=True, copy_function=_link_or_copy)
    shutil.rmtree(place, ignore_errors=True)
    building.rename(place)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def nsys_version(nsys: Nsys) -> str | None:
    """`2025.3.2.0`, or None where it does not say."""
    try:
        answer = subprocess.run(
            [str(nsys.path), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\d+\.\d+\.\d+(\.\d+)?", answer.stdout)
    return found.group() if found else None


def profile_command(nsys: Nsys, recording: Recording, report: Path) -> list[str]:
    """The command line that records into `report` (without ending): few flags, the user's, the program."""
    flags = [
        "-t",
        "cuda,nvtx",
        "-s",
        "none",
        "--cpuctxsw=none",
        f"--cuda-graph-trace={recording.graph_level}",
    ]
    if recording.capture_range:
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    target = ["-o", str(report), "--force-overwrite=true"]
    return [str(nsys.path), "profile", *flags, *recording.nsys_args, *target, *recording.command]


def record(
    nsys: Nsys,
    recording: Recording,
    output: Path,
    echo: Echo,
    *,
    environment: Mapping[str, str] | None = None,
) -> Recorded:
    """Record the program and export the SQLite file `output`; nsys's report lies beside it.

    A recording whose program fails keeps its report. Raises CaptureError with the end of nsys's output.
    """
    report = report_path(output)
    finished = run_logged(
        profile_command(nsys, recording, report), echo, environment=environment, keep=is_worth_showing
    )
    written = _written_report(nsys, report, echo)
    if finished.returncode:
        kept = f"; the report is kept as {written}" if written else "; no report was written"
        raise CaptureError(
            f"nsys or the program failed with exit code {finished.returncode}{kept}{end_of_output(finished)}"
        )
    if written is None:
        hint = _library_hint(finished.tail)
        raise CaptureError(f"nsys wrote no report at {report}{hint}{end_of_output(finished)}")
    export_report(written, nsys.path, output)
    return Recorded(written, finished)


def report_path(output: Path) -> Path:
    """Where nsys is told to write, without an ending: it takes what follows a dot in the name for one."""
    return output.with_name(output.stem.replace(".", "_"))


def _written_report(nsys: Nsys, report: Path, echo: Echo) -> Path | None:
    written = Path(f"{report}.nsys-rep")
    raw = Path(f"{report}.qdstrm")
    if not written.exists() and raw.exists():
        import_raw(nsys, raw, written, echo)
    return written if written.exists() else None


def import_raw(nsys: Nsys, raw: Path, report: Path, echo: Echo) -> None:
    """Turn a `.qdstrm` that nsys left behind into the report. Raises CaptureError, and keeps the file."""
    if nsys.importer is None:
        raise CaptureError(f"{raw}: nsys left it unimported and QdstrmImporter is not beside {nsys.path}")
    finished = run_logged(
        [str(nsys.importer), "-i", str(raw), "-o", str(report)], echo, keep=is_worth_showing
    )
    if finished.returncode or not report.exists():
        raise CaptureError(
            f"{raw}: QdstrmImporter failed{_library_hint(finished.tail)}{end_of_output(finished)}"
        )


def export_report(report: Path, nsys: Path, output: Path) -> None:
    """Export a `.nsys-rep` as SQLite, replacing `output`. Raises CaptureError with nsys's last lines."""
    command = [str(nsys), "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(output)]
    finished = run_logged([*command, str(report)], lambda line: None, keep=is_worth_showing)
    if finished.returncode or not output.exists():
        raise CaptureError(
            f"{report}: nsys cannot export it{_library_hint(finished.tail)}{end_of_output(finished)}"
        )


def _library_hint(lines: Sequence[str]) -> str:
    missing = sorted({name for line in lines for name in re.findall(r"lib(?:dw|elf)\.so", line)})
    return f" ({' and '.join(missing)} missing: install libdw1 and libelf1)" if missing else ""


def is_worth_showing(line: str) -> bool:
    """False for nsys's progress bars and the lines around them."""
    return not PROGRESS.match(line)
