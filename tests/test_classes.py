"""Kernel classes by name, projections by place, and both on a real step of another program."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tracekit.decode.classes import (
    TracedKernel,
    assign_roles,
    class_patterns,
    classify_kernel,
    row_of_estimate,
    row_of_role,
    tabulate_classes,
)
from tracekit.decode.facts import read_facts
from tracekit.decode.kernels import FUSIONS, Step, list_kernels
from tracekit.decode.models import load_model

HF_COMPILE = Path(__file__).parents[1] / "sample_traces" / "hf_compile.sqlite"
KERNELS_A_STEP = 566  # docs/measured.md section 5

NORM, ATTENTION, SILU = "RMSNormKernel", "flash_fwd_kernel", "act_and_mul_kernel"
GEMM, REDUCE = "nvjet_x", "splitKreduce_kernel"
QKV, O, GATE_UP, DOWN, HEAD = "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"  # noqa: E741

EXAMPLES = [
    (example, fact["cls"])
    for fact in read_facts("kernel_patterns")["patterns"]
    for example in fact.get("examples", [])
]


def read_steps() -> list[list[TracedKernel]]:
    query = (
        "SELECT s.value, k.gridX, k.gridY, k.gridZ, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName ORDER BY k.start"
    )
    with closing(sqlite3.connect(f"{HF_COMPILE.as_uri()}?mode=ro&immutable=1", uri=True)) as trace:
        rows = [TracedKernel(name, (x, y, z), ns) for name, x, y, z, ns in trace.execute(query)]
    return [rows[i : i + KERNELS_A_STEP] for i in range(0, len(rows), KERNELS_A_STEP)]


def roles(*kernels: str | tuple[str, int]) -> list[str]:
    """The roles of names; a pair's number is its grid, to tell one GEMM from another."""
    named = [(k, (1, 1, 1)) if isinstance(k, str) else (k[0], (k[1], 1, 1)) for k in kernels]
    return [role for role in assign_roles(named) if role.endswith("proj") or role in ("lm_head", "router")]


@pytest.mark.parametrize(("name", "kernel_class"), EXAMPLES)
def test_each_patterns_examples_are_of_its_class(name: str, kernel_class: str) -> None:
    assert classify_kernel(name) == kernel_class


def test_a_name_that_nothing_matches_is_other() -> None:
    assert classify_kernel("somebodys_kernel") == "other"
    assert all(pattern.source for pattern in class_patterns())


def test_a_layers_projections_are_known_by_their_place() -> None:
    layer = (NORM, GEMM, ATTENTION, GEMM, NORM, GEMM, SILU, GEMM)

    assert roles(*layer, *layer, NORM, GEMM) == [QKV, O, GATE_UP, DOWN] * 2 + [HEAD]


def test_separate_q_k_v_gate_and_up_and_split_k() -> None:
    layer = (NORM, GEMM, GEMM, NORM, GEMM, ATTENTION, GEMM, NORM, GEMM, GEMM, SILU, GEMM, REDUCE)

    assert roles(*layer, NORM, GEMM, REDUCE) == [QKV] * 3 + [O, GATE_UP, GATE_UP, DOWN, DOWN, HEAD, HEAD]


def test_where_no_norm_shows_the_grid_tells() -> None:
    layer = ((GEMM, 1), ATTENTION, (GEMM, 2), (GEMM, 3), SILU, (GEMM, 4))

    assert roles(*layer, *layer, (GEMM, 5)) == [QKV, O, GATE_UP, DOWN] * 2 + [HEAD]


def test_where_no_activation_shows_the_norms_and_the_grid_tell() -> None:
    layer = (NORM, (GEMM, 1), ATTENTION, (GEMM, 2), NORM, (GEMM, 3), (GEMM, 4))

    assert roles(*layer, *layer, NORM, (GEMM, 5)) == [QKV, O, GATE_UP, DOWN] * 2 + [HEAD]


def test_where_neither_shows_nothing_is_claimed() -> None:
    assert roles(GEMM, ATTENTION, GEMM, GEMM, GEMM, GEMM, ATTENTION) == [QKV]
    assert roles(NORM, GEMM, SILU, GEMM) == []  # no attention: no decode layer


def test_an_expert_layer() -> None:
    experts = (GEMM, "topk_softmax", "moe_align_block_size", "fused_moe_kernel", SILU, "fused_moe_kernel")

    assert roles(NORM, GEMM, ATTENTION, GEMM, NORM, *experts, NORM, GEMM) == [
        *(QKV, O, "router", GATE_UP, DOWN, HEAD)
    ]


def test_order_and_names_are_all_that_counts_for_an_empty_step() -> None:
    assert assign_roles([]) == ()
    assert tabulate_classes([], []) == ()


@pytest.mark.parametrize("fusion", sorted(FUSIONS.keys() - {"six", "megakernel"}))
@pytest.mark.parametrize("model", ["Qwen3-0.6B", "Llama-3.1-8B", "Qwen3-30B-A3B"])
def test_no_byte_of_the_estimate_is_lost_in_the_table(fusion: str, model: str) -> None:
    expected = list_kernels(Step(load_model(model), tp=2, fusion=fusion))

    rows = tabulate_classes([], expected)

    assert sum(row.expected_bytes or 0 for row in rows) == sum(kernel.total_bytes for kernel in expected)
    assert sum(row.expected_kernels for row in rows) == len(expected)


def test_rows_have_one_name_from_both_sides() -> None:
    assert row_of_role("fused_add_rmsnorm") == row_of_estimate("final_norm") == "norm"
    assert row_of_role("kv_write") == row_of_estimate("kv_cache_write")
    assert row_of_role("o_proj") == row_of_estimate("o_proj")
    assert row_of_role("other") == "other"


def test_every_step_of_the_real_trace_is_explained() -> None:
    for step in read_steps():
        rows = {row.row: row for row in tabulate_classes(step, [])}
        total_ns = sum(kernel.duration_ns for kernel in step)

        assert sum(row.measured_ns for row in rows.values()) == total_ns
        assert sum(row.kernels for row in rows.values()) == KERNELS_A_STEP
        unexplained_ns = rows["other"].measured_ns if "other" in rows else 0
        assert unexplained_ns <= 0.05 * total_ns


def test_the_real_traces_classes_against_the_estimates() -> None:
    # a layer there: norm, q, k, v each with its own kernels, K and V copied, mask, attention + reduction, o,
    # norm, gate, up, silu, down in two halves
    rows = {r.row: r for r in tabulate_classes(read_steps()[5], list_kernels(Step(load_model("Qwen3-0.6B"))))}

    counts = {row.row: (row.kernels, row.expected_kernels) for row in rows.values()}
    assert counts == {
        "norm": (57, 57),
        "qkv_proj": (84, 28),
        "qk_norm_rope": (56, 28),
        "kv_cache_write": (28, 28),
        "attention_prep": (84, 0),
        "attention": (28, 28),
        "attention_combine": (28, 0),
        "o_proj": (28, 28),
        "gate_up_proj": (56, 28),
        "silu_mul": (28, 28),
        "down_proj": (56, 28),
        "lm_head": (1, 1),
        "sample": (1, 1),
        "elementwise": (30, 0),
        "gemm_fp32": (1, 0),
    }
    # 311 MB in 75 us: above what lm_head reached on this GPU (measured.md section 7: 4.5 TB/s) it cannot be
    lm_head = rows["lm_head"]
    assert lm_head.expected_bytes == 1024 * 151936 * 2
    assert 3e12 < lm_head.expected_bytes / lm_head.measured_ns * 1e9 < 4.5e12
