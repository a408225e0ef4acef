"""GPU figures: found by people's and the driver's spelling, never guessed."""

import pytest

from tracekit.decode.gpus import find_gpu, gpu_names, gpu_of_bandwidth
from tracekit.errors import UnknownNameError, UsageError


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("H100 SXM", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("h100 nvl", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("rtx5090", "RTX-5090"),
        ("NVIDIA GH200 480GB", "GH200-96GB-HBM3"),
        ("NVIDIA L40S", "L40S"),
        ("B200", "B200"),
    ],
)
def test_a_gpu_is_found_as_people_and_as_the_driver_write_it(name: str, found: str) -> None:
    assert find_gpu(name).name == found


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_is_found_by_its_own_name_and_has_a_source(name: str) -> None:
    gpu = find_gpu(name)

    assert gpu.name == name
    assert gpu.bandwidth_bytes_per_s > 0
    assert gpu.source


def test_h100_alone_is_the_handbooks() -> None:
    assert find_gpu("H100").bandwidth_bytes_per_s == 3_350_000_000_000


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("A100", "A100-SXM4-80GB, A100-SXM4-40GB, A100-PCIe-80GB"),
        ("GH200", "GH200-96GB-HBM3, GH200-144GB-HBM3e"),
    ],
)
def test_a_name_that_fits_several_lists_them(name: str, candidates: str) -> None:
    with pytest.raises(UnknownNameError, match=f"GPU '{name}' could be {candidates}: say which"):
        find_gpu(name)


@pytest.mark.parametrize(
    "name",
    ["", "NVIDIA", "HBM2", "Tesla T4", "NVIDIA L4", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU"],
)
def test_an_unknown_gpu_is_an_error_that_lists_what_there_is(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"no GPU named .*; there are A100-SXM4-80GB, .*; or give"):
        find_gpu(name)


def test_a_bandwidth_stands_for_a_gpu() -> None:
    assert gpu_of_bandwidth(4_814_000_000_000, "the trace").source == "the trace"
    with pytest.raises(UsageError, match="give a positive one"):
        gpu_of_bandwidth(0, "the trace")
