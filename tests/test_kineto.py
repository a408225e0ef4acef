"""PyTorch's Chrome traces: event lists and what the reader makes of them, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import fuzzed
from tracekit.analysis.boundaries import find_boundaries
from tracekit.analysis.gaps import gaps
from tracekit.cli import main
from tracekit.errors import TraceError
from tracekit.readers import json_stream, read
from tracekit.trace import NONE, WHOLE_CONTEXT, Trace

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
Event = dict[str, Any]


def event(category: str, name: str, ts: object, dur: object, pid: object = 0, **args: object) -> Event:
    spelled = {name.replace("_", " "): value for name, value in args.items()}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": spelled,
    }


def kernel(name: str, ts: object, dur: object, **args: object) -> Event:
    return event("kernel", name, ts, dur, **{"device": 0, "context": 1, "stream": 7, **args})


def call(name: str, ts: object, dur: object, correlation: int, pid: int = 40) -> Event:
    return event("cuda_runtime", name, ts, dur, pid, correlation=correlation)


def write(folder: Path, events: list[Event], **fields: object) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({**fields, "traceEvents": events}))
    return path


def read_text(folder: Path, text: str | bytes) -> Trace:
    path = folder / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path)


def test_launches_ranges_and_kernels_join(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            event("user_annotation", "step", 10, 20, 40),
            event("gpu_user_annotation", "step", 14, 30),
            call("cudaLaunchKernel", 11, 2, 1),
            call("cudaLaunchKernel", 18, 2, 2),
            kernel("a", 15, 4, correlation=1),
            kernel("b", 21, 5, correlation=2),
            event("gpu_memcpy", "Memcpy HtoD", 19.5, 1, device=0, context=1, stream=7, bytes=64),
            event("cuda_sync", "Stream Sync", 20, 0.5, device=0, context=1, stream=7),
            event("cuda_sync", "Context Sync", 27, 1, device=0, context=1, stream=-1),
            event("cuda_sync", "Stream Wait Event", 27, 1, device=0, context=1, stream=7),
            event("overhead", "Buffer Flush", 27, 1),
        ],
        schemaVersion=1,
        deviceProperties=[{"id": 0, "name": "NVIDIA B200"}],
    )

    trace = read(path)
    report = gaps(trace, "range")

    assert [(row.key, row.gap_ns.min, row.interrupted) for row in report.rows] == [
        ({"range": "step"}, 2_000, 1)
    ]
    assert report.rows[0].causes_ns == {"host": 0, "call": 1_000, "queued": 1_000, "unknown": 0}
    assert [key.process for key in trace.streams] == [40, 40]
    assert [trace.streams[code].stream for code in trace.waits.stream] == [7, WHOLE_CONTEXT]
    assert [(gpu.name, gpu.memory_bandwidth_bytes_per_s) for gpu in trace.recording.gpus] == [
        ("NVIDIA B200", None)
    ]
    assert (trace.recording.product, trace.recording.schema_version) == ("PyTorch profiler", "1")
    assert (trace.recording.nsys_version, trace.recording.graph_trace) == (None, None)
    assert [gpu.device for gpu in report.gpus] == [0]


@pytest.mark.parametrize(
    ("ts", "dur", "base", "start_ns", "end_ns"),
    [
        ("1365627862757.064", "2.08", 1767189312000000000, 1768554939862757064, 1768554939862759144),
        ("1700000000123456.789", "0.001", 0, 1700000000123456789, 1700000000123456790),
        ("1600000000000001", "3", 0, 1600000000000001000, 1600000000000004000),
        ("1.6e15", "3.0004", 0, 1600000000000000000, 1600000000000003000),
        ("2.5004999", "1e-3", 0, 2500, 2501),
        ("-0.5", "1.5", 0, -500, 1000),
    ],
)
def test_times_are_exact(ts: str, dur: str, base: int, start_ns: int, end_ns: int, tmp_path: Path) -> None:
    text = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": %s, "dur": %s}], "%s": %d}'

    trace = read_text(tmp_path, text % (ts, dur, "baseTimeNanoseconds", base))

    assert (trace.kernels.start_ns[0], trace.kernels.end_ns[0]) == (start_ns, end_ns)


def test_times_that_cannot_be_are_dropped_and_counted(tmp_path: Path) -> None:
    now = 1_700_000_000_000_000
    odd = [(0, 0), (0, 5), (now, -1), (now, None), ("soon", 1), (now, 1e30)]

    trace = read(write(tmp_path, [kernel("k", ts, dur) for ts, dur in [(now, 4), *odd, (now + 6, 0)]]))

    assert trace.span_ns == 6_000
    assert [(w.code, w.count) for w in trace.recording.warnings] == [
        ("rows_dropped", len(odd)),
        ("no_calls", 1),
    ]


def test_categories_of_2021(tmp_path: Path) -> None:
    def row(category: str, name: str, place: tuple[int, str], ts: int, **args: int) -> Event:
        pid, tid = place
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "dur": 2,
            "args": args,
        }

    gpu = (0, "stream 7")
    trace = read(
        write(
            tmp_path,
            [
                row("Operator", "ProfilerStep#1", (9, "123"), 1),
                row("Operator", "aten::add", (9, "123"), 1),
                row("Runtime", "cudaLaunchKernel", (9, "123"), 2, correlation=5),
                row("Kernel", "add", gpu, 4, correlation=5, queued=0),
                row("Memcpy", "Memcpy DtoH", gpu, 7, correlation=6),
                row("Memset", "Memset", gpu, 9, correlation=7),
            ],
        )
    )

    assert [(k.process, k.device, k.context, k.stream) for k in trace.streams] == [(9, 0, 0, 7)]
    assert (trace.range_names, trace.names) == (("ProfilerStep#1",), ("cudaLaunchKernel", "add"))
    assert trace.ranges.thread.tolist() == trace.calls.thread.tolist() == [9 << 24 | 123]
    assert trace.copies.memset.tolist() == [False, True]
    assert trace.kernels.call.tolist() == [0]


def test_graph_nodes_make_replays(tmp_path: Path) -> None:
    whole = {"graph_id": 3, "correlation": 8}
    events = [
        call("cudaGraphLaunch", 1, 3, 8),
        kernel("a", 5, 2, graph_node_id=3 << 32, **whole),
        kernel("b", 8, 2, graph_node_id=1, **whole),
        kernel("eager", 20, 2, graph_node_id=0, graph_id=0, correlation=9),
    ]

    trace = read(write(tmp_path, events))

    assert trace.recording.graph_trace == "node"
    assert trace.kernels.graph_node.tolist() == [3 << 32, 3 << 32 | 1, NONE]
    assert find_boundaries(trace).replay.tolist() == [False, True, False]


def test_a_graph_launch_without_node_ids_is_said(tmp_path: Path) -> None:
    events = [
        call("hipGraphLaunch", 1, 3, 8),
        kernel("a", 5, 2, correlation=8),
        kernel("b", 8, 2, correlation=8),
    ]

    warnings = read(write(tmp_path, events)).recording.warnings

    assert [(w.code, w.count) for w in warnings] == [("graph_nodes_unknown", 2)]


def test_of_merged_files_each_stream_is_the_process_that_launched_it(tmp_path: Path) -> None:
    events = []
    for pid, device, at in ((50, 0, 0), (60, 1, 1_000)):
        for i in range(3):  # correlation ids repeat
            events.append(call("cudaLaunchKernel", at + 10 * i + 1, 2, i, pid))
            events.append(kernel("k", at + 10 * i + 4, 2, correlation=i, device=device))

    trace = read(write(tmp_path, events))

    assert [(key.process, key.device) for key in trace.streams] == [(50, 0), (60, 1)]
    assert (trace.kernels.start_ns - trace.calls.start_ns[trace.kernels.call]).tolist() == [3_000] * 6


def test_long_thread_ids_are_numbered(tmp_path: Path) -> None:
    events = [call("f", 1, 1, 1), call("g", 2, 1, 2), kernel("k", 3, 1, correlation=1)]
    events[0]["tid"], events[1]["tid"] = 140_123_456_789_000, 140_123_456_000_000

    assert read(write(tmp_path, events)).calls.thread.tolist() == [40 << 24 | 1, 40 << 24]


def test_grids_are_read_when_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, [kernel("k", 3, 1, grid=[4, 2, 1], block=[128]), kernel("l", 5, 1, grid="odd")])

    kernels = read(path, shapes=True).kernels

    assert kernels.grid is not None
    assert kernels.block is not None
    assert kernels.grid.tolist() == [[4, 2, 1], [0, 0, 0]]
    assert kernels.block.tolist() == [[128, 0, 0], [0, 0, 0]]


# What is no such trace

GOOD = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}, {"ph": "M"}], "z": 1}'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD[:60], "the JSON is cut off, near byte 60 of the JSON"),
        (GOOD[:82], "the JSON is cut off, near byte 82 of the JSON"),
        (GOOD[:-3], "the JSON is cut off, near byte"),
        (GOOD.replace('"k"', r'"C:\k"'), "not valid JSON (invalid escape character in string), near byte 59"),
        (GOOD.replace('"ts": 1', '"ts": nan'), "not valid JSON (invalid character), near byte"),
        (GOOD.encode().replace(b'"k"', b'"\xff"'), "a byte that is not UTF-8), near byte 55"),
        (GOOD.replace('{"ph": "M"}', "7"), "an event of the trace is odd"),
        (GOOD.replace('"M"', "[" * 9999), "nested too deeply"),
        (GOOD.replace("kernel", "cpu_op"), "without GPU activity; record it with torch.profiler"),
        (GOOD.replace("kernel", "cuda_runtime"), "CUDA calls were recorded but no GPU activity"),
        (GOOD.replace('"dur": 2', '"dur": -2'), "impossible time"),
        ('{"events": []}', "JSON without a list 'traceEvents'"),
        ('{"events": ', "the JSON is cut off"),
        ("[" * 9999, "nested too deeply"),
        (gzip.compress(GOOD.encode())[:-20], "the gzip data is cut off or damaged"),
        (gzip.compress(b"SQLite format 3\0"), "what is inside is no JSON; unpack it: gunzip"),
    ],
    ids=range(16),
)
def test_what_is_wrong_is_one_line_with_its_place(text: str | bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        read_text(tmp_path, text)

    assert complaint in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'trace.json'}: ")
    assert "\n" not in str(error.value)


def test_the_list_is_found_whatever_lies_around_it(tmp_path: Path) -> None:
    decoy = {"traceEvents": [1]}
    text = json.dumps(
        {"a": decoy, "b": '"traceEvents": [', "traceEvents": [kernel("k}, {", 1, 2)], "c": [{}, {}]}
    )

    assert read_text(tmp_path, b"\xef\xbb\xbf" + text.encode()).names == ("k}, {",)


# Published traces


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the published traces are not here")
def test_pdl_on_a_b200(capsys: pytest.CaptureFixture[str]) -> None:
    path = CORPUS / "kineto_b200_pdl.json.gz"
    gap_ns = find_boundaries(read(path)).gap_ns

    assert main(["gaps", str(path), "--json", "--by", "none"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["kernels"], row["overlapping"], row["gap_ns"]["min"]) == (768, 74, -3_744)
    assert gap_ns[gap_ns < 0].max() == -128


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the published traces are not here")
@pytest.mark.parametrize("by", ["range", "stream", "pair", "kernel", "graph"])
def test_decoding_on_an_mi300x(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaps", str(CORPUS / "kineto_sglang_decode.json.gz"), "--csv", "--by", by]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1


# Anything at all, against a plain reading

limited = pytest.mark.usefixtures("a_gigabyte_more")

NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.integers(-10, 10**7),
    st.decimals(0, 10**7, places=3),
    st.decimals(10**15, 2 * 10**15, places=3),
    st.sampled_from([None, "7", "stream 7", 0, 2**63, [], True]),
)
TEXTS = st.sampled_from(["a", "b", "k}, {", '"', "\\", "é\u2028", "", "cudaGraphLaunch"])
ARGS = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(st.integers(0, 3), NUMBERS)
        for name in ("device", "context", "stream", "correlation", "graph id", "graph node id", "bytes")
    }
    | {"nested": st.just([{"a": 1}, {"b": [{}, {}]}])},
)
EVENTS = st.fixed_dictionaries(
    {
        "args": st.one_of(ARGS, ARGS, st.just([])),
        "ph": st.sampled_from(["X", "X", "X", "X", "s"]),
        "cat": st.sampled_from(
            ["kernel", "Kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "cpu_op", 3]
        ),
        "name": TEXTS,
        "ts": NUMBERS,
        "dur": NUMBERS,
    },
    optional={"pid": NUMBERS, "tid": NUMBERS},
)
FIELDS = st.fixed_dictionaries({}, optional={"baseTimeNanoseconds": st.sampled_from([0, 10**18, "x"])})
TRACES = st.builds(
    lambda head, events, tail: {**head, "traceEvents": events, **tail},
    FIELDS, st.lists(EVENTS, min_size=1, max_size=12), FIELDS,
)  # fmt: skip
KINDS = {"kernel": "kernels", "Kernel": "kernels", "gpu_memcpy": "copies", "cuda_runtime": "calls",
         "user_annotation": "ranges"}  # fmt: skip
Times = dict[str, list[tuple[int, int]]]


def plain_times(document: Any) -> Times | None:
    """Start and end of each kind's valid rows, sorted, by Decimals; None for what is no such trace."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return None
    base = document.get("baseTimeNanoseconds")
    base = base if isinstance(base, int) else 0
    found: Times = {kind: [] for kind in KINDS.values()}
    for row in document["traceEvents"]:
        if not isinstance(row, dict):
            return None
        kind = KINDS.get(str(row.get("cat")))
        times: list[Any] = [row.get(name) for name in ("ts", "dur")]
        numbers = all(isinstance(t, int | Decimal) and not isinstance(t, bool) for t in times)
        if kind and row.get("ph") == "X" and numbers:
            start, dur = (round(Decimal(t) * 1000) for t in times)
            if dur >= 0 and (start or dur) and abs(start) < 2**61 and dur < 2**61:
                found[kind].append((start, start + dur))
    for kind, rows in found.items():
        far = any(start > 86_400 * 10**9 for start, _ in rows)
        found[kind] = sorted((s + base, e + base) for s, e in rows if s or not far)
    return found if found["kernels"] or found["copies"] else None


def read_times(path: Path) -> Times | None:
    """The same from the reader; None where it refuses, which it does in one line."""
    try:
        trace = read(path)
    except TraceError as error:
        assert "\n" not in str(error)
        return None
    gaps(trace, "range")
    tables = {kind: getattr(trace, kind) for kind in set(KINDS.values())}
    return {k: sorted(zip(t.start_ns.tolist(), t.end_ns.tolist(), strict=True)) for k, t in tables.items()}


def spell(document: object) -> str:
    """JSON with Decimals as they are."""
    text = json.dumps(document, default=lambda number: f"<{number}>", ensure_ascii=False)
    return text.replace('"<', "").replace('>"', "")


@fuzzed
@limited
@given(document=TRACES, chunk=st.sampled_from([16, 100, 1 << 22]))
def test_any_trace_is_read_as_plainly(
    document: dict[str, Any], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
    text = spell(document)
    (tmp_path / "x.json").write_text(text)

    assert read_times(tmp_path / "x.json") == plain_times(json.loads(text, parse_float=Decimal))


@fuzzed
@limited
@given(document=TRACES, data=st.data(), chunk=st.sampled_from([16, 1 << 22]))
def test_damage_gives_the_right_answer_or_a_refusal(
    document: dict[str, Any], data: st.DataObject, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
    damaged = bytearray(spell(document).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    path = tmp_path / "x.json"
    path.write_bytes(gzip.compress(damaged) if data.draw(st.booleans()) else damaged)

    found = read_times(path)

    try:
        expected = plain_times(json.loads(damaged, parse_float=Decimal))
    except (ValueError, RecursionError):
        return  # what is no JSON is refused, or the damage lies in what is not looked at
    assert found in (None, expected)


@fuzzed
@limited
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3))
def test_damaged_gzip_is_an_answer_or_a_refusal(flips: list[tuple[float, int]], tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(GOOD.encode()))
    for place, byte in flips:
        packed[int(place * len(packed))] = byte
    (tmp_path / "x.gz").write_bytes(packed)

    found = read_times(tmp_path / "x.gz")

    assert found is None or np.array_equal(found["kernels"], [(1_000, 3_000)])
