"""The kernel list: the handbook's bytes, what the fusions merge, dtypes, GPUs that share, experts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.decode.kernels import FUSIONS, Step, expected_experts, kernel_assumptions, list_kernels
from tracekit.decode.models import Experts, load_model, model_names
from tracekit.errors import UnknownNameError, UsageError

SMALL = Step(load_model("Qwen3-0.6B"))
MOE = Step(load_model("Qwen3-30B-A3B"))


def layer_names(step: Step) -> list[str]:
    return [kernel.name for kernel in list_kernels(step) if kernel.layer == 0]


def total_bytes(step: Step) -> int:
    return sum(kernel.total_bytes for kernel in list_kernels(step))


def test_one_layer_and_the_tail_are_the_handbooks() -> None:
    # hidden 1024, q 2048, kv 1024, inter 3072, vocab 151936; batch 1, context 1024, 2 bytes a value
    kernels = list_kernels(SMALL)

    assert [(k.name, k.total_bytes) for k in kernels[:10]] == [
        ("add_rmsnorm", 4 * 1024 * 2),
        ("qkv_proj", 1024 * (2048 + 2 * 1024) * 2),
        ("qk_norm_rope", 2 * (2048 + 1024) * 2),
        ("kv_cache_write", 2 * 1024 * 2),
        ("attention", 1024 * 2 * 1024 * 2),
        ("o_proj", 2048 * 1024 * 2),
        ("add_rmsnorm", 4 * 1024 * 2),
        ("gate_up_proj", 1024 * 2 * 3072 * 2),
        ("silu_mul", 3 * 3072 * 2),
        ("down_proj", 3072 * 1024 * 2),
    ]
    assert [(k.name, k.total_bytes) for k in kernels[-3:]] == [
        ("final_norm", 2 * 1024 * 2),
        ("lm_head", 1024 * 151936 * 2),
        ("sample", 151936 * 4),
    ]


def test_six_merges_neighbours_and_keeps_every_byte() -> None:
    six = replace(SMALL, fusion="six")

    assert layer_names(six) == [
        "add_rmsnorm+qkv_proj",
        "qk_norm_rope+kv_cache_write",
        "attention",
        "o_proj",
        "add_rmsnorm+gate_up_proj",
        "silu_mul+down_proj",
    ]
    assert len(list_kernels(six)) == 171
    assert total_bytes(six) == total_bytes(SMALL)


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_six_and_the_megakernel_keep_every_byte_of_every_model(name: str, tp: int) -> None:
    step = Step(load_model(name), batch=3, tp=tp)

    assert total_bytes(replace(step, fusion="six")) == total_bytes(step)
    assert total_bytes(replace(step, fusion="megakernel")) == total_bytes(step)
    assert len(list_kernels(replace(step, fusion="megakernel"))) == 1


def test_engine_layers_are_those_of_engines_md() -> None:
    vllm, sglang = layer_names(replace(SMALL, fusion="vllm")), layer_names(replace(SMALL, fusion="sglang"))

    assert vllm[4:7] == ["attention_prep", "attention", "attention_combine"]
    assert sglang[2:5] == ["qk_norm", "rope", "kv_cache_write"]
    assert (len(vllm), len(sglang)) == (12, 11)  # "10-13" there


def test_a_model_without_qk_norm_has_a_rope_alone() -> None:
    llama = Step(load_model("Llama-3.1-8B"))

    assert layer_names(llama)[2] == "rope"
    assert layer_names(replace(llama, fusion="sglang")).count("rope") == 1
    assert layer_names(replace(llama, fusion="six"))[1] == "rope+kv_cache_write"


@pytest.mark.parametrize(
    ("dtype", "half_bytes"), [("fp32", 8), ("fp16", 4), ("fp8", 2), ("int8", 2), ("int4", 1)]
)
def test_weights_and_cache_have_their_own_dtype(dtype: str, half_bytes: int) -> None:
    plain = list_kernels(SMALL)
    weights = list_kernels(replace(SMALL, weight_dtype=dtype))
    cache = list_kernels(replace(SMALL, kv_dtype=dtype))

    assert [4 * k.weight_bytes for k in weights] == [half_bytes * k.weight_bytes for k in plain]
    assert [4 * k.kv_bytes for k in cache] == [half_bytes * k.kv_bytes for k in plain]
    assert [k.kv_bytes for k in weights] == [k.kv_bytes for k in plain]
    if dtype != "fp32":  # narrow weights still meet 16-bit activations
        assert [k.activation_bytes for k in weights] == [k.activation_bytes for k in plain]


def test_gpus_share_weights_and_kv_heads_and_all_reduce_twice_a_layer() -> None:
    alone, shared = list_kernels(SMALL), list_kernels(replace(SMALL, tp=2))

    assert sum(k.weight_bytes for k in alone) == 2 * sum(k.weight_bytes for k in shared)
    assert sum(k.kv_bytes for k in alone) == 2 * sum(k.kv_bytes for k in shared)
    names = layer_names(replace(SMALL, tp=2))
    assert [names[i - 1] for i, name in enumerate(names) if name == "all_reduce"] == ["o_proj", "down_proj"]
    assert next(k for k in shared if k.name == "all_reduce").total_bytes == 2 * 1024 * 2


def test_a_kv_head_is_not_cut() -> None:
    eight, sixteen = replace(SMALL, tp=8), replace(SMALL, tp=16)

    assert [k.kv_bytes for k in list_kernels(eight)] == [k.kv_bytes for k in list_kernels(sixteen)]


def test_experts_touched_by_a_batch() -> None:
    experts = Experts(count=128, top_k=8, intermediate=768)

    assert expected_experts(experts, 1) == pytest.approx(8)
    assert expected_experts(experts, 2) == pytest.approx(8 + 8 * 120 / 128)  # the second token's new ones
    assert expected_experts(experts, 10_000) == pytest.approx(128)


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 64))
def test_no_batch_touches_more_experts_than_there_are_or_than_it_picks(
    count: int, top_k: int, batch: int
) -> None:
    experts = Experts(count=count, top_k=min(top_k, count), intermediate=1)

    touched = expected_experts(experts, batch)

    assert experts.top_k <= touched + 1e-6
    assert touched <= min(count, batch * experts.top_k) + 1e-6


def test_an_expert_layer_reads_the_touched_experts_and_the_router() -> None:
    by_name = {kernel.name: kernel for kernel in list_kernels(MOE) if kernel.layer == 0}

    assert by_name["router"].weight_bytes == 2048 * 128 * 2
    assert by_name["gate_up_proj"].weight_bytes == 8 * 2048 * 2 * 768 * 2
    assert by_name["down_proj"].weight_bytes == 8 * 768 * 2048 * 2
    assert by_name["silu_mul"].activation_bytes == 3 * 8 * 768 * 2
    assert any("8.0 of 128 experts touched" in sentence for sentence in kernel_assumptions(MOE))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_says_what_it_is(fusion: str) -> None:
    assert FUSIONS[fusion] in kernel_assumptions(replace(SMALL, fusion=fusion))[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch 0: give 1 or more"),
        ({"context": -1}, "context -1"),
        ({"tp": 3}, "Qwen3-0.6B has 16 heads: 3 GPUs cannot share them"),
    ],
)
def test_a_step_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Step(SMALL.model, **changes)


def test_unknown_dtypes_and_fusions_list_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match="no dtype named 'fp7'; there are fp32, bf16"):
        replace(SMALL, weight_dtype="fp7")
    with pytest.raises(UnknownNameError, match="no fusion named 'five'; there are handbook, six"):
        replace(SMALL, fusion="five")
