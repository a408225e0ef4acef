"""The kernels without a GPU: compiled by NVRTC for three architectures, their PTX and their SASS read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ptx import Step, steps
from workloads.errors import WorkloadError
from workloads.nvrtc import Compiled, compile_file

WAIT, TRIGGER = Step("griddepcontrol.wait"), Step("griddepcontrol.launch_dependents")
ARCHITECTURES = ("sm_75", "sm_90", "sm_100")
BUILDS: list[tuple[str, dict[str, int]]] = [
    *(("pdl_chain.cu", {"TRIGGER": trigger}) for trigger in (0, 1, 2)),
    ("pdl_chain.cu", {"READ_ONLY_WEIGHTS": 1}),
    *(("boundary_sweep.cu", {"STAMPS": stamps}) for stamps in (0, 1)),
    ("clocks.cu", {}),
]
# layer(in, out, weight, bias, n) and layer(in, out, weights, vectors, stamps)
INPUT, OUTPUT, WEIGHTS, BIAS = 0, 1, 2, 3


def layer_steps(file: str, architecture: str, **defines: int) -> list[Step]:
    return steps(compile_file(file, architecture, defines).ptx, "layer")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("file", "defines"), BUILDS)
def test_every_kernel_compiles_to_machine_code(file: str, defines: dict[str, int], architecture: str) -> None:
    compiled = compile_file(file, architecture, defines)

    assert f".target {architecture}" in compiled.ptx
    assert compiled.cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize("file", ["pdl_chain.cu", "boundary_sweep.cu"])
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_wait_and_trigger_are_there_from_hopper_on(file: str, architecture: str) -> None:
    found = layer_steps(file, architecture)

    assert found.count(WAIT) == 1
    assert found.count(TRIGGER) == 1


@pytest.mark.parametrize("file", ["pdl_chain.cu", "boundary_sweep.cu"])
def test_neither_is_there_before_hopper(file: str) -> None:
    assert "griddepcontrol" not in compile_file(file, "sm_75").ptx


def test_the_chain_reads_weights_waits_reads_stores_triggers() -> None:
    assert layer_steps("pdl_chain.cu", "sm_90") == [
        Step("ld.global.f32", WEIGHTS),
        Step("ld.global.f32", BIAS),
        WAIT,
        Step("ld.global.f32", INPUT),
        Step("st.global.f32", OUTPUT),
        TRIGGER,
    ]


@pytest.mark.parametrize(("trigger", "place"), [(0, None), (1, 5), (2, 0)])
def test_the_trigger_stands_where_it_was_asked_for(trigger: int, place: int | None) -> None:
    found = layer_steps("pdl_chain.cu", "sm_90", TRIGGER=trigger)

    assert (found.index(TRIGGER) if TRIGGER in found else None) == place


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize(("file", "defines"), BUILDS[:-1])
def test_before_the_wait_only_weights_are_touched(
    file: str, defines: dict[str, int], architecture: str
) -> None:
    found = layer_steps(file, architecture, **defines)
    before = [step for step in found[: found.index(WAIT)] if step != TRIGGER]

    assert {step.parameter for step in before} == ({WEIGHTS, BIAS} if file == "pdl_chain.cu" else {WEIGHTS})
    assert all(step.operation.startswith("ld.global") for step in before)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("file", "defines"), BUILDS[:-1])
def test_the_input_never_goes_through_the_read_only_cache(
    file: str, defines: dict[str, int], architecture: str
) -> None:
    reads = [step for step in layer_steps(file, architecture, **defines) if step.parameter == INPUT]

    assert len(reads) == 1
    assert reads[0].operation in ("ld.global.f32", "ld.global.u32", "ld.global.b32")


def test_stamps_are_stored_only_when_asked_for() -> None:
    def stamp_stores(stamps: int) -> int:
        found = layer_steps("boundary_sweep.cu", "sm_90", STAMPS=stamps)
        return sum(step.parameter == 4 for step in found)

    assert (stamp_stores(0), stamp_stores(1)) == (0, 3)


def test_a_broken_kernel_is_one_line_with_the_log() -> None:
    with pytest.raises(WorkloadError, match=r"NVRTC cannot compile pdl_chain\.cu for sm_10"):
        compile_file("pdl_chain.cu", "sm_10")


# What the assembler does is not in the PTX: it moves read-only loads behind the wait, an empty prologue.


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize("file", ["pdl_chain.cu", "boundary_sweep.cu"])
def test_the_machine_code_loads_weights_before_it_waits(file: str, architecture: str, tmp_path: Path) -> None:
    loads_before = first_loads(sass(compile_file(file, architecture), tmp_path))

    assert loads_before == (2 if file == "pdl_chain.cu" else 5)


def test_weights_as_the_handbook_declares_them_are_loaded_after_the_wait(tmp_path: Path) -> None:
    compiled = compile_file("pdl_chain.cu", "sm_90", {"READ_ONLY_WEIGHTS": 1})

    assert first_loads(sass(compiled, tmp_path)) == 0


def first_loads(operations: list[str]) -> int:
    """How many global loads come before the wait (SASS: ACQBULK)."""
    return sum(operation.startswith("LDG") for operation in operations[: operations.index("ACQBULK")])


def sass(compiled: Compiled, folder: Path) -> list[str]:
    """The operations of the kernel `layer`, in order."""
    cubin = folder / "layer.cubin"
    cubin.write_bytes(compiled.cubin)
    answer = subprocess.run([nvdisasm(), "-c", str(cubin)], capture_output=True, check=True)
    text = answer.stdout.decode().split("\n.text.layer:")[1].split("\n//---")[0]
    lines = (line.split("*/", 1)[1].strip() for line in text.splitlines() if line.strip().startswith("/*"))
    return [
        line.split()[1] if line.startswith("@") else line.split()[0].rstrip(";") for line in lines if line
    ]


def nvdisasm() -> str:
    if on_path := shutil.which("nvdisasm"):
        return on_path
    for folder in sys.path:
        for found in Path(folder).glob("nvidia/cu*/bin/nvdisasm"):
            return str(found)
    pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
