"""Which kernel of the estimate a traced kernel is: its class by name, a projection's role by its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from tracekit.decode.facts import read_facts
from tracekit.decode.kernels import Kernel
from tracekit.errors import UnknownNameError, UsageError

OTHER = "other"  # matched by no pattern

Grid = tuple[int, int, int]

_PROJECTIONS = frozenset({"proj_gemm", "proj_gemv", "moe_gemm"})
_FEED_FORWARD = "gate_up_proj, then down_proj"
_ROLES = frozenset({"qkv_proj", "o_proj", "router", "gate_up_proj", "down_proj", "lm_head"})
_NORMS = frozenset(
    {
        "norm",
        "rmsnorm",
        "fused_add_rmsnorm",
        "embedding_rmsnorm",
        "allreduce_rmsnorm",
        "moe_allreduce_rmsnorm",
    }
)

# Class or role of a traced kernel -> row of the class table. What is missing here is its own row.
ROW_BY_CLASS = {
    **dict.fromkeys(_NORMS, "norm"),
    **dict.fromkeys(("qknorm", "rope", "qknorm_rope", "qknorm_rope_kvwrite"), "qk_norm_rope"),
    "rope_kvwrite": "qk_norm_rope",
    "kv_write": "kv_cache_write",
    "router_gemm": "router",
    "allreduce": "all_reduce",
    "sampling": "sample",
    "sort_topk": "sample",
}

# Kernel of the estimate -> row of the class table, the same way.
ROW_BY_ESTIMATE = {
    "add_rmsnorm": "norm",
    "final_norm": "norm",
    **dict.fromkeys(("qk_norm", "rope"), "qk_norm_rope"),
    "moe_sum": "moe_permute",
}


@dataclass(frozen=True)
class ClassPattern:
    """One name pattern, with where it was read and what it says about PDL."""

    pattern: re.Pattern[str]
    kernel_class: str
    engine: str
    source: str
    pdl: str | None


@dataclass(frozen=True)
class TracedKernel:
    """A kernel as a trace has it; `name` is the demangled one, the short one says too little."""

    name: str
    grid: Grid
    duration_ns: int


@dataclass(frozen=True)
class ClassRow:
    """The kernels of one row of the class table: in the trace, and in the estimate's list.

    `expected_bytes` is None where the estimate has no such kernel. A fused traced kernel counts in one
    row only: a qk-norm + rope that also writes the cache is a `qk_norm_rope`.
    """

    row: str
    kernels: int
    measured_ns: int
    expected_kernels: int
    expected_bytes: int | None


@dataclass(frozen=True)
class UnmatchedName:
    """A kernel name of the step that no pattern matches: how many kernels, and their time."""

    name: str
    kernels: int
    measured_ns: int


@cache
def class_patterns() -> tuple[ClassPattern, ...]:
    """The patterns of facts/kernel_patterns.json, in the order in which they are tried."""
    return tuple(
        ClassPattern(
            re.compile(fact["pattern"]), fact["cls"], fact["engine"], fact["source"], fact.get("pdl")
        )
        for fact in read_facts("kernel_patterns")["patterns"]
    )


def read_pattern(text: str) -> ClassPattern:
    """A pattern of the user's own, spelled CLASS=PATTERN; CLASS is a class, a role or a row of the table.

    Raises UsageError for another spelling and for a pattern that is no regular expression.
    """
    kernel_class, equals, pattern = text.partition("=")
    if not (kernel_class and equals and pattern):
        raise UsageError(f"--class {text}: CLASS=PATTERN is wanted, as in all_reduce=my_ar_.*")
    try:
        return ClassPattern(re.compile(pattern), kernel_class, "", f"--class {text}", None)
    except re.error as error:
        raise UsageError(f"--class {text}: the pattern is no regular expression: {error}") from None


@cache
def classify_kernel(name: str, own: tuple[ClassPattern, ...] = ()) -> str:
    """The class of a demangled kernel name: the first pattern found in it, `own` ones first, else `other`."""
    return next((p.kernel_class for p in (*own, *class_patterns()) if p.pattern.search(name)), OTHER)


def assign_roles(step: Sequence[tuple[str, Grid]], own: tuple[ClassPattern, ...] = ()) -> tuple[str, ...]:
    """The class of each kernel of one step, in order; a projection gets its role instead.

    Roles are `qkv_proj`, `o_proj`, `router`, `gate_up_proj`, `down_proj`, `lm_head`: the names do not
    tell, so the place does. Between attention and activation: o_proj up to the norm, gate_up_proj after
    it. Between activation and the next attention: down_proj up to the norm, qkv_proj after it; after the
    last layer, lm_head. Where no norm shows (it may be inside another kernel), the projections with the
    first one's name and grid are o_proj or down_proj; and so for gate_up_proj where no activation shows.
    A split-K reduction goes with the projection before it. A step without attention keeps its classes.
    """
    roles = [classify_kernel(name, own) for name, _ in step]
    if "attention" not in roles:
        return tuple(roles)
    anchors = [i for i, role in enumerate(roles) if role in ("attention", "silu_mul")]
    for start, end in zip([None, *anchors], [*anchors, None], strict=True):
        before = None if start is None else roles[start]
        after = None if end is None else roles[end]
        span = range(0 if start is None else start + 1, len(step) if end is None else end)
        _name_span(step, roles, span, _roles_between(before, after))
    _join_split_k(roles)
    return tuple(roles)


def row_of_role(role: str) -> str:
    """The row of the class table that a class or role of `assign_roles` counts in."""
    return ROW_BY_CLASS.get(role, role)


def row_of_estimate(kernel_name: str) -> str:
    """The row of the class table that a kernel of an unmerged list counts in."""
    return ROW_BY_ESTIMATE.get(kernel_name, kernel_name)


def tabulate_classes(
    step: Sequence[TracedKernel], expected: Iterable[Kernel], own: tuple[ClassPattern, ...] = ()
) -> tuple[ClassRow, ...]:
    """The class table of one step, longest measured time first; every traced kernel is in one row.

    `expected` is the estimate's list (`list_kernels`), not a merged one: `six` and `megakernel` have
    kernels that no single row holds.
    """
    roles = assign_roles([(kernel.name, kernel.grid) for kernel in step], own)
    measured: dict[str, list[int]] = {}
    for kernel, role in zip(step, roles, strict=True):
        measured.setdefault(row_of_role(role), []).append(kernel.duration_ns)
    listed: dict[str, list[int]] = {}
    for wanted in expected:
        listed.setdefault(row_of_estimate(wanted.name), []).append(wanted.total_bytes)
    rows = [_class_row(row, measured.get(row, []), listed.get(row)) for row in {**measured, **listed}]
    return tuple(sorted(rows, key=lambda row: -row.measured_ns))


def find_unmatched(
    step: Sequence[TracedKernel], own: tuple[ClassPattern, ...] = ()
) -> tuple[UnmatchedName, ...]:
    """The kernel names of a step that no pattern matches, longest time first.

    Raises UnknownNameError, with those names, where one of the user's `own` patterns matches no kernel.
    """
    durations: dict[str, list[int]] = {}
    for kernel in step:
        if classify_kernel(kernel.name, own) == OTHER:
            durations.setdefault(kernel.name, []).append(kernel.duration_ns)
    found = [UnmatchedName(name, len(ns), sum(ns)) for name, ns in durations.items()]
    found.sort(key=lambda unmatched: -unmatched.measured_ns)
    for pattern in own:
        if not any(pattern.pattern.search(kernel.name) for kernel in step):
            raise UnknownNameError(f"{pattern.source}: no kernel of the step matches; {_spell_names(found)}")
    return tuple(found)


def _spell_names(unmatched: Sequence[UnmatchedName]) -> str:
    names = ", ".join(one.name[:64] for one in unmatched[:5])
    return f"of no class yet: {names}" if names else "every kernel has a class"


def _class_row(row: str, durations_ns: list[int], sizes_bytes: list[int] | None) -> ClassRow:
    return ClassRow(
        row=row,
        kernels=len(durations_ns),
        measured_ns=sum(durations_ns),
        expected_kernels=len(sizes_bytes or ()),
        expected_bytes=None if sizes_bytes is None else sum(sizes_bytes),
    )


def _roles_between(before: str | None, after: str | None) -> tuple[str, ...]:
    """The roles in a span between two anchors: before the first norm in it, after it, after the second."""
    if before is None:
        return ("qkv_proj",)
    last = "qkv_proj" if after == "attention" else "lm_head"
    if before == "silu_mul":
        return "down_proj", last
    return ("o_proj", "gate_up_proj") if after == "silu_mul" else ("o_proj", _FEED_FORWARD, last)


def _name_span(
    step: Sequence[tuple[str, Grid]], roles: list[str], span: range, names: tuple[str, ...]
) -> None:
    projections = [i for i in span if roles[i] in _PROJECTIONS]
    norms = [i for i in span if roles[i] in _NORMS]
    routed = any(roles[i] in ("moe_route", "moe_gemm") for i in span)
    if not norms and _FEED_FORWARD in names:
        return  # three roles and nothing between them: the place does not tell
    named: dict[int, str] = {}
    for i in projections:
        place = sum(norm < i for norm in norms) if norms else step[i] != step[projections[0]]
        named[i] = names[min(place, len(names) - 1)]
        if routed and named[i] == "gate_up_proj" and roles[i] != "moe_gemm":
            named[i] = "router"
    feed_forward = [i for i in projections if named[i] == _FEED_FORWARD]
    for i in feed_forward:
        named[i] = "gate_up_proj" if step[i] == step[feed_forward[0]] else "down_proj"
    for i, name in named.items():
        roles[i] = name


def _join_split_k(roles: list[str]) -> None:
    previous = OTHER
    for i, role in enumerate(roles):
        if role == "splitk_reduce" and previous in _ROLES:
            roles[i] = previous
        previous = roles[i]
