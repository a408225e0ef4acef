"""The kernels of one decode step and the bytes each must move, under a named fusion."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.decode.models import Experts, ModelShape
from tracekit.errors import UnknownNameError, UsageError

BITS_BY_DTYPE = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "fp4": 4}
LOGIT_BYTES = 4  # the handbook's sample kernel reads fp32 logits

ATTENTION_BLOCK = ("add_rmsnorm", "qkv_proj", "qk_norm_rope", "kv_cache_write", "attention", "o_proj")
DENSE_BLOCK = ("add_rmsnorm", "gate_up_proj", "silu_mul", "down_proj")
EXPERTS_BLOCK = ("add_rmsnorm", "router", "moe_route", "gate_up_proj", "silu_mul", "down_proj")
TAIL = ("final_norm", "lm_head", "sample")

FUSIONS = {
    "handbook": "10 kernels a layer (12 with experts: a router and its top-k), then norm, lm_head, sample",
    "six": "6 kernels a layer: the handbook's short kernels run inside their neighbours, no byte is saved",
    "megakernel": "1 kernel for the whole step, the handbook's bytes",
    "vllm": "a vLLM 0.33 layer as docs/engines.md reads it: attention has a prepare and a combine kernel",
    "sglang": "a SGLang 0.5.23 layer as docs/engines.md reads it: qk-norm and rope are two kernels",
}

_SIX_GROUPS = (
    ("add_rmsnorm", "qkv_proj"),
    ("qk_norm_rope", "rope", "kv_cache_write"),
    ("attention",),
    ("o_proj",),
    ("add_rmsnorm", "router", "moe_route", "gate_up_proj"),
    ("silu_mul", "down_proj"),
)
_ENGINE_PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {"attention": ("attention_prep", "attention", "attention_combine")},
    "sglang": {"qk_norm_rope": ("qk_norm", "rope")},
}
_EXPERT_PARTS: dict[str, tuple[str, ...]] = {
    "gate_up_proj": ("moe_permute", "gate_up_proj"),
    "down_proj": ("down_proj", "moe_sum"),
}


@dataclass(frozen=True)
class Step:
    """One decode step: a model, how many sequences, how many tokens each has in its KV cache.

    `tp` is the number of GPUs that share every layer; the kernels are those of one of them.
    Raises UsageError or UnknownNameError for values that no step can have.
    """

    model: ModelShape
    batch: int = 1
    context: int = 1024
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    tp: int = 1
    fusion: str = "handbook"

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("context", self.context), ("tp", self.tp)):
            if value < 1:
                raise UsageError(f"{name} {value}: give 1 or more")
        for dtype in (self.weight_dtype, self.kv_dtype):
            _require_known("dtype", dtype, BITS_BY_DTYPE)
        _require_known("fusion", self.fusion, FUSIONS)
        if self.model.heads % self.tp:
            raise UsageError(
                f"{self.model.name} has {self.model.heads} heads: {self.tp} GPUs cannot share them"
            )


@dataclass(frozen=True)
class Kernel:
    """One kernel of the step and the bytes that it must read and write on one GPU.

    `layer` counts from 0; None after the layers. `name` joins with `+` what a fused kernel does.
    """

    name: str
    layer: int | None
    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


def list_kernels(step: Step) -> tuple[Kernel, ...]:
    """The step's kernels in the order in which they run.

    `handbook`: the list and the formulas of decode_gaps.py.
    `six`: exercise 1's six a layer. Merged are norm + qkv, qk-norm-rope + cache write, norm + gate_up
    (with the router, where there are experts) and silu + down; attention and o_proj stay alone. The
    bytes stay the handbook's: its answer neglects what the merged kernels no longer write and read.
    `megakernel`: everything in one kernel.
    `vllm`, `sglang`: the layers that docs/engines.md section 3 read from their code; with experts also a
    kernel that sorts the tokens by expert and one that adds the experts' outputs (`moe_align_block_size` and
    `moe_sum` in facts/kernel_patterns.json). vLLM can fuse an all-reduce with the norm after it; not here.
    With `tp` above 1 an all-reduce follows o_proj and down_proj; in `megakernel` it is inside.
    """
    layer = _list_layer(step)
    kernels = [replace(kernel, layer=number) for number in range(step.model.layers) for kernel in layer]
    kernels += [_make_kernel(step, name) for name in TAIL]
    return (_merge(kernels, "megakernel"),) if step.fusion == "megakernel" else tuple(kernels)


def expected_experts(experts: Experts, batch: int) -> float:
    """How many of a layer's experts a batch is expected to touch: E x (1 - (1 - k/E)^batch).

    Assumes that each token picks its k experts at random, evenly and without regard to the other tokens:
    one expert is missed by one token with probability 1 - k/E. Real routers favour some experts, so
    fewer are touched. One token touches exactly k.
    """
    return experts.count * (1 - (1 - experts.top_k / experts.count) ** batch)


def kernel_assumptions(step: Step) -> tuple[str, ...]:
    """What the kernel list takes for granted, a sentence each."""
    model, sentences = step.model, [f"kernel list `{step.fusion}`: {FUSIONS[step.fusion]}"]
    sentences.append(
        f"weights in {step.weight_dtype}, KV cache in {step.kv_dtype}, activations in "
        f"{_activation_dtype(step)}; scales of quantised values, norm weights and biases are not counted"
    )
    sentences.append("each weight is read once a step, lm_head whole; the embedding's one row is left out")
    if step.fusion == "vllm":
        sentences.append(
            "attention_prep moves nothing; attention_combine is charged as if there were one split"
        )
    if model.experts:
        touched = expected_experts(model.experts, step.batch)
        sentences.append(
            f"{touched:.1f} of {model.experts.count} experts touched a layer: "
            f"E x (1 - (1 - k/E)^batch), every token choosing evenly at random"
        )
    if model.sliding_window and model.sliding_window < step.context:
        sentences.append(f"attention reads the sliding window of {model.sliding_window} tokens only")
    if step.tp > 1:
        sentences.append(
            f"{step.tp} GPUs share heads, feed-forward and vocabulary; an all-reduce is charged with reading "
            "and writing its tensor in this GPU's memory: the link between the GPUs costs nothing here"
        )
    return tuple(sentences)


def _list_layer(step: Step) -> list[Kernel]:
    feed_forward = EXPERTS_BLOCK if step.model.experts else DENSE_BLOCK
    names = _engine_names(step, ATTENTION_BLOCK + feed_forward)
    kernels = [_make_kernel(step, name) for name in names]
    if step.fusion == "six":
        kernels = _merge_groups(kernels)
    return _with_all_reduces(step, kernels) if step.tp > 1 else kernels


def _engine_names(step: Step, names: tuple[str, ...]) -> tuple[str, ...]:
    """The handbook's names, each replaced by the kernels that the engine launches for it."""
    parts = _ENGINE_PARTS.get(step.fusion, {})
    if parts and step.model.experts:
        parts = parts | _EXPERT_PARTS
    listed = (part for name in names for part in parts.get(name, (name,)))
    if step.model.qk_norm:
        return tuple(listed)
    return tuple("rope" if name == "qk_norm_rope" else name for name in listed if name != "qk_norm")


def _make_kernel(step: Step, name: str) -> Kernel:
    activation_bytes = _bytes(_activation_values(step).get(name, 0), _activation_dtype(step))
    return Kernel(
        name=name,
        layer=None,
        weight_bytes=_bytes(_weight_values(step).get(name, 0), step.weight_dtype),
        kv_bytes=_bytes(_kv_values(step).get(name, 0), step.kv_dtype),
        activation_bytes=step.batch * step.model.vocab * LOGIT_BYTES
        if name == "sample"
        else activation_bytes,
    )


def _weight_values(step: Step) -> dict[str, float]:
    """How many weights each kernel reads on one GPU: decode_gaps.py, split over `tp`.

    An expert's matrices are split like a dense layer's; the router is not.
    """
    model, h = step.model, step.model.hidden
    q, kv = _query_width(step), _kv_width(step)
    touched, width = 1.0, model.intermediate
    if model.experts:
        touched, width = expected_experts(model.experts, step.batch), model.experts.intermediate
    return {
        "qkv_proj": h * (q + 2 * kv),
        "o_proj": q * h,
        "router": h * model.experts.count if model.experts else 0,
        "gate_up_proj": touched * h * 2 * width / step.tp,
        "down_proj": touched * width * h / step.tp,
        "lm_head": h * model.vocab / step.tp,
    }


def _kv_values(step: Step) -> dict[str, int]:
    kv = _kv_width(step)
    read = min(step.context, step.model.sliding_window or step.context)
    return {"kv_cache_write": 2 * step.batch * kv, "attention": step.batch * read * 2 * kv}


def _activation_values(step: Step) -> dict[str, float]:
    """How many activations each kernel reads and writes: decode_gaps.py, which leaves out the projections'.

    Not in decode_gaps.py: a norm and a rope of their own move q and k once each, as the fused one does;
    the combine reads one partial output and writes one; `moe_route` reads a logit an expert;
    `moe_permute` moves indices only (0); `moe_sum` reads k rows and writes one; an all-reduce reads and
    writes its tensor.
    """
    model, batch = step.model, step.batch
    row = batch * model.hidden
    q, kv = _query_width(step), _kv_width(step)
    rows, width = batch, model.intermediate
    if model.experts:
        rows, width = batch * model.experts.top_k, model.experts.intermediate
    return {
        "add_rmsnorm": 4 * row,
        **dict.fromkeys(("qk_norm_rope", "qk_norm", "rope"), 2 * batch * (q + kv)),
        "attention_combine": 2 * batch * q,
        "moe_route": batch * model.experts.count if model.experts else 0,
        "silu_mul": 3 * rows * width / step.tp,
        "moe_sum": (rows + batch) * model.hidden,
        "all_reduce": 2 * row,
        "final_norm": 2 * row,
    }


def _query_width(step: Step) -> int:
    return step.model.heads * step.model.head_dim // step.tp


def _kv_width(step: Step) -> int:
    """A KV head is not cut: with more GPUs than KV heads each GPU holds a whole one."""
    return -(-step.model.kv_heads // step.tp) * step.model.head_dim


def _activation_dtype(step: Step) -> str:
    """Quantised weights still meet 16-bit activations."""
    return step.weight_dtype if BITS_BY_DTYPE[step.weight_dtype] >= 16 else "bf16"


def _bytes(values: float, dtype: str) -> int:
    return round(values * BITS_BY_DTYPE[dtype] / 8)


def _merge_groups(kernels: list[Kernel]) -> list[Kernel]:
    waiting, merged = list(kernels), []
    for group in _SIX_GROUPS:
        inside = []
        while waiting and waiting[0].name in group:
            inside.append(waiting.pop(0))
        merged.append(_merge(inside, "+".join(kernel.name for kernel in inside)))
    return merged


def _merge(kernels: list[Kernel], name: str) -> Kernel:
    return Kernel(
        name=name,
        layer=None,
        weight_bytes=sum(kernel.weight_bytes for kernel in kernels),
        kv_bytes=sum(kernel.kv_bytes for kernel in kernels),
        activation_bytes=sum(kernel.activation_bytes for kernel in kernels),
    )


def _with_all_reduces(step: Step, kernels: list[Kernel]) -> list[Kernel]:
    """An all-reduce after o_proj, and after the layer's last."""
    cut = 1 + next(i for i, kernel in enumerate(kernels) if kernel.name == "o_proj")
    all_reduce = _make_kernel(step, "all_reduce")
    return [*kernels[:cut], all_reduce, *kernels[cut:], all_reduce]


def _require_known(what: str, name: str, known: dict[str, int] | dict[str, str]) -> None:
    if name not in known:
        raise UnknownNameError(f"no {what} named {name!r}; there are {', '.join(known)}")
