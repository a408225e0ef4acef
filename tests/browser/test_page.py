"""The report page as somebody uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

import tracekit
import tracekit.intervals
from tests.browser.conftest import HOSTILE_NAMES, SAMPLES, OpenTrace
from tests.run import run
from tracekit.analysis.idle import measure_busy
from tracekit.report.json import gaps_json
from tracekit.report.names import printable
from tracekit.report.text import cautions, headline
from tracekit.units import format_ns, format_share

PDL = "pdl_chain_node.sqlite"
COMPILED = "hf_compile.sqlite"
OPAQUE = "pdl_chain_graph_level.sqlite"
EVERYTHING = (PDL, COMPILED, OPAQUE)


def view(page: Page) -> tuple[float, float]:
    t0, t1 = page.evaluate("[view.t0, view.t1]")
    return t0, t1


def place(page: Page, kind: str, row: int, gap: bool = False) -> tuple[float, float]:
    """Where the middle of a bar or a gap is, in the window."""
    return tuple(
        page.evaluate(
            """([kind, i, gap]) => {
                const panel = state.panels[0];
                const box = boxOf(panel, { table: panel.run.tables[kind], i, gap });
                const canvas = panel.canvas.getBoundingClientRect();
                return [canvas.left + (box.left + box.right) / 2, canvas.top + (box.top + box.bottom) / 2];
            }""",
            [kind, row, gap],
        )
    )


def settle(page: Page) -> None:
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_answer_is_that_of_the_gaps_command(open_trace: OpenTrace, name: str) -> None:
    page = open_trace(name)
    overview = tracekit.gaps(tracekit.read(SAMPLES / name), "none")
    said = [s.strip() for s in headline(overview)]
    assert page.locator("#answer li").all_inner_texts()[: len(said)] == said
    assert page.locator("main > section:last-child li").all_inner_texts() == cautions(overview)


def test_the_budget_of_the_step_is_on_the_page(open_trace: OpenTrace, tmp_path: Path) -> None:
    """The parts of `estimate --json`, adding up to the step; the prediction where a model is named."""
    model = ("--model", "Qwen3-0.6B")
    assert run("report", SAMPLES / COMPILED, "-o", tmp_path / "x.html", *model).code == 0
    page = open_trace(tmp_path / "x.html")
    page.wait_for_function("document.getElementById('budget').data")
    budget = run("estimate", "--trace", SAMPLES / COMPILED, *model, "--json").document["measured"]["budget"]
    times = page.evaluate("document.getElementById('budget').data[0].text")
    assert times[-1] == format_ns(budget["span_ns"])
    assert format_ns(budget["replay_ns"]) in times
    assert page.locator("#prediction-box").is_visible()


def test_the_inside_of_a_megakernel_is_on_the_page(open_trace: OpenTrace, tmp_path: Path) -> None:
    """From the sidecar: 16 workers on 16 SMs, 20 tasks each, every task with its three parts."""
    assert run("report", SAMPLES / "megakernel_push.sqlite", "-o", tmp_path / "x.html").code == 0
    page = open_trace(tmp_path / "x.html")
    page.wait_for_function("state.inside")
    assert page.locator("#inside-box").is_visible()
    assert page.evaluate("state.inside.critical.length") == 20


def test_the_pair_table_holds_the_numbers_of_json(open_trace: OpenTrace) -> None:
    page = open_trace(COMPILED)
    document = json.loads(gaps_json([tracekit.gaps(tracekit.read(SAMPLES / COMPILED), "pair")]))
    lines = page.evaluate(
        """[...document.querySelectorAll("#pairs tbody tr")].map((line) => [
            ...[...line.cells].slice(0, 3).map((cell) => cell.title),
            ...[...line.cells].slice(3, 7).map((cell) => Number(cell.dataset.value)),
            Number(line.cells[9].dataset.value)])"""
    )
    assert lines == [pair_line(row) for row in document["rows"]]


def pair_line(row: dict[str, Any]) -> list[Any]:
    gap = row["gap_ns"]
    names = (printable(row["key"]["previous"]), printable(row["key"]["next"]))
    return [*names, row["where"], row["boundaries"], gap["median"], gap["p10"], gap["p90"], row["white_ns"]]


@pytest.mark.parametrize("name", EVERYTHING)
def test_busy_time_adds_up_at_every_zoom(open_trace: OpenTrace, name: str) -> None:
    page = open_trace(name)
    trace = tracekit.read(SAMPLES / name)
    kernels = trace.kernels
    on_page = page.evaluate(
        """state.panels[0].run.tables.kernel.tracks.map((track) => busyUntil(track, track.high - 1, 1e18))"""
    )
    assert sum(on_page) == tracekit.intervals.union_length(kernels.start_ns, kernels.end_ns)
    copies = sum(device.copy_only_ns for device in measure_busy(trace).devices)
    opaque = trace.opaque_replays
    replays = int((opaque.end_ns - opaque.start_ns).sum())
    assert sum(on_page) + copies + replays == measure_busy(trace).devices[0].busy_ns


@pytest.mark.parametrize("kind", ["copy", "kernel", "replay", "range", "call"])
def test_nothing_is_too_short_to_be_seen(open_trace: OpenTrace, kind: str) -> None:
    page = open_trace(PDL)
    page.keyboard.press("0")
    settle(page)
    unseen = page.evaluate(
        """(kind) => {
            const panel = state.panels[0];
            const ratio = panel.canvas.width / panel.width;
            const { data, width } = panel.context.getImageData(0, 0, panel.canvas.width, panel.canvas.height);
            const paper = data.slice(4 * (width + 5), 4 * (width + 5) + 3).join();
            const at = (x, y) => data.slice(4 * (y * width + x), 4 * (y * width + x) + 3).join();
            const painted = (x, y) => at(x, y) !== paper;
            return panel.rows.filter((row) => row.track?.table.kind === kind).flatMap((row) => {
                const rows = [];
                for (let i = row.track.low; i < row.track.high; i += 1) rows.push(i);
                return rows.filter((i) => {
                    const x = Math.floor(xAt(panel, row.track.table.start[i]) * ratio);
                    for (let y = Math.floor(row.y * ratio); y < (row.y + row.height) * ratio; y += 1)
                        if (painted(x, y) || painted(x + 1, y)) return false;
                    return true;
                });
            });
        }""",
        kind,
    )
    assert unseen == []


def test_numbers_are_written_as_in_the_terminal(open_trace: OpenTrace) -> None:
    page = open_trace(OPAQUE)
    values = [
        0,
        0.5,
        1.5,
        64,
        -160,
        95.5,
        999,
        999.4,
        999.6,
        1000,
        9995,
        12_345,
        999_499,
        999_500,
        1e6,
        2.5e9,
    ]
    assert page.evaluate("(values) => values.map((v) => formatNs(v))", values) == [
        format_ns(v) for v in values
    ]
    shares = [(0, 5), (1, 4096), (4095, 4096), (1, 3), (1, 0)]
    assert page.evaluate("(s) => s.map(([a, b]) => formatShare(a, b))", shares) == [
        format_share(a, b) for a, b in shares
    ]


def test_the_wheel_zooms_at_the_pointer_and_the_fragment_follows(open_trace: OpenTrace) -> None:
    page = open_trace(PDL)
    box = page.locator("#timelines canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    before = view(page)
    page.mouse.wheel(0, -400)
    settle(page)
    after = view(page)
    assert before[0] < after[0] < after[1] < before[1]
    page.wait_for_timeout(400)
    assert page.evaluate("location.hash").startswith(f"#t={round(after[0])}..{round(after[1])}")


def test_dragging_pans_and_shift_zooms(open_trace: OpenTrace) -> None:
    page = open_trace(PDL, fragment="#t=1000000..2000000")
    box = page.locator("#timelines canvas").bounding_box()
    assert box
    y = box["y"] + 60
    drag(page, (box["x"] + 700, y), (box["x"] + 500, y))
    moved = view(page)
    assert moved[0] > 1_000_000
    assert moved[1] - moved[0] == pytest.approx(1_000_000)
    page.keyboard.down("Shift")
    drag(page, (box["x"] + 500, y), (box["x"] + 700, y))
    page.keyboard.up("Shift")
    zoomed = view(page)
    assert moved[0] < zoomed[0] < zoomed[1] < moved[1]


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move((start[0] + end[0]) / 2, end[1])
    page.mouse.move(*end)
    page.mouse.up()
    settle(page)


def test_hovering_tells_all_about_a_kernel(open_trace: OpenTrace) -> None:
    page = open_trace(COMPILED)
    page.evaluate("goTo(state.panels[0], state.panels[0].run.tables.kernel, 100, false)")
    settle(page)
    page.mouse.move(*place(page, "kernel", 100))
    trace = tracekit.read(SAMPLES / COMPILED)
    words = page.locator("#tip").inner_text()
    assert printable(trace.names[trace.kernels.name[100]])[:100] in words
    for word in ("gap before", "grid", "block", "decode_step", "replay of graph", "launched by"):
        assert word in words


def test_a_pixel_of_many_says_how_many(open_trace: OpenTrace) -> None:
    page = open_trace(COMPILED)
    box = page.locator("#timelines canvas").bounding_box()
    assert box
    top = page.evaluate("state.panels[0].rows.find((row) => row.track?.table.kind === 'kernel').y")
    page.mouse.move(box["x"] + 800, box["y"] + top + 8)
    words = page.locator("#tip").inner_text()
    assert re.search(r"in this pixel\n\d+ start, busy \d+\.\d % of \d+\.\d us, longest gap", words)


def test_clicking_a_kernel_lights_up_its_launch_call(open_trace: OpenTrace) -> None:
    page = open_trace(PDL)
    page.evaluate("goTo(state.panels[0], state.panels[0].run.tables.kernel, 50, false)")
    page.evaluate("select(state.panels[0], null)")
    settle(page)
    page.mouse.click(*place(page, "kernel", 50))
    assert "cuLaunchKernelEx" in page.locator("#detail").inner_text()
    page.keyboard.press("c")
    settle(page)
    trace = tracekit.read(SAMPLES / PDL)
    call_ns = int(trace.calls.start_ns[trace.kernels.call[50]]) - trace.start_ns
    low, high = view(page)
    assert low < call_ns < trace.kernels.start_ns[50] - trace.start_ns < high


def test_clicking_a_call_lights_up_what_it_launched(open_trace: OpenTrace) -> None:
    page = open_trace(PDL)
    call = page.evaluate("state.panels[0].run.tables.kernel.call[50]")
    page.evaluate("(i) => goTo(state.panels[0], state.panels[0].run.tables.call, i, false)", call)
    settle(page)
    page.mouse.click(*place(page, "call", call))
    assert page.evaluate("[state.active.selected.table.kind, state.active.selected.i]") == ["kernel", 50]


def test_both_kernels_of_an_overlap_can_be_met(open_trace: OpenTrace) -> None:
    page = open_trace(PDL)
    row = page.evaluate("state.panels[0].run.tables.kernel.gap.findIndex((gap, i) => i && gap === -160)")
    assert row > 0
    page.evaluate("(i) => goTo(state.panels[0], state.panels[0].run.tables.kernel, i, false)", row)
    settle(page)
    tops = {place(page, "kernel", i)[1] for i in (row - 1, row)}
    assert len(tops) == 2
    for i in (row - 1, row):
        page.mouse.move(*place(page, "kernel", i))
        start = page.evaluate("(i) => formatNs(state.panels[0].run.tables.kernel.start[i])", i)
        assert start in page.locator("#tip").inner_text()
    page.evaluate(
        "(i) => select(state.panels[0], { table: state.panels[0].run.tables.kernel, i, gap: true })", row
    )
    assert "PDL, or an overrun" in page.locator("#detail").inner_text()


def test_searching_counts_and_goes_to_the_next_match(open_trace: OpenTrace) -> None:
    page = open_trace(COMPILED)
    page.keyboard.press("/")
    page.keyboard.type("splitkreduce")
    trace = tracekit.read(SAMPLES / COMPILED)
    codes = {i for i, name in enumerate(trace.names) if "splitkreduce" in name.lower()}
    expected = sum(int(code) in codes for code in trace.kernels.name)
    assert page.locator("#found").inner_text() == f"{expected:,} matches"
    page.keyboard.press("Enter")
    assert "splitKreduce" in page.locator("#detail").inner_text()
    first = page.evaluate("state.active.selected.i")
    page.keyboard.press("Enter")
    assert page.evaluate("state.active.selected.i") > first


def test_keys_go_along_the_longest_gaps(open_trace: OpenTrace) -> None:
    page = open_trace(PDL)
    longest = (
        "Math.max(...state.panels[0].run.longest.launch.map((i) => state.panels[0].run.tables.kernel.gap[i]))"
    )
    page.keyboard.press("N")
    assert page.evaluate("state.active.run.tables.kernel.gap[state.active.selected.i]") == page.evaluate(
        longest
    )
    page.keyboard.press("P")
    second = page.evaluate("state.active.run.tables.kernel.gap[state.active.selected.i]")
    assert second < page.evaluate(longest)
    here = page.evaluate("state.active.selected.i")
    page.keyboard.press("n")
    assert page.evaluate("state.active.selected.i") > here
    page.keyboard.press("p")
    assert page.evaluate("state.active.selected.i") == here


def test_a_row_of_the_gap_table_leads_into_the_timeline(open_trace: OpenTrace) -> None:
    page = open_trace(PDL)
    line = page.locator("#gaps tbody tr").first
    gap = line.locator("td").first.inner_text()
    line.click()
    assert gap in page.locator("#detail").inner_text()
    low, high = view(page)
    start = page.evaluate("state.active.run.tables.kernel.start[state.active.selected.i]")
    assert low < start < high


def test_the_fragment_brings_the_view_back(open_trace: OpenTrace) -> None:
    page = open_trace(PDL, fragment="#t=5000..9000000&sel=kernel:7:gap")
    assert view(page) == (5000, 9_000_000)
    assert page.evaluate("[state.active.selected.i, state.active.selected.gap]") == [7, True]


def test_tables_can_be_sorted(open_trace: OpenTrace) -> None:
    page = open_trace(COMPILED)
    page.locator("#pairs th button", has_text="median").click()
    values = page.evaluate(
        "[...document.querySelectorAll('#pairs tbody tr')].map((r) => Number(r.cells[4].dataset.value))"
    )
    assert values == sorted(values, reverse=True)
    assert page.locator("#pairs th[aria-sort=descending]").count() == 1


def test_opaque_replays_are_shown_as_such(open_trace: OpenTrace) -> None:
    page = open_trace(OPAQUE)
    page.evaluate("goTo(state.panels[0], state.panels[0].run.tables.opaque, 3, false)")
    assert "recorded as a whole" in page.locator("#detail").inner_text()


def test_two_traces_share_one_scale(open_trace: OpenTrace) -> None:
    page = open_trace(PDL, OPAQUE)
    assert page.locator("#timelines canvas").count() == 2
    assert "node-level tracing lengthens" in page.locator("#difference-notes").inner_text()
    rows = page.locator("#class-difference tbody tr").all_inner_texts()
    assert any("992 ns" in row and "960 ns" in row and "-32 ns" in row for row in rows)
    scales = page.evaluate("state.panels.map((panel) => xAt(panel, 1e8))")
    assert scales[0] == scales[1]


def test_charts_are_drawn(open_trace: OpenTrace) -> None:
    page = open_trace(COMPILED)
    for chart in ("histogram-replay", "histogram-launch", "steps", "jitter", "lengths"):
        assert page.locator(f"#{chart} svg.main-svg").count() > 0
    counted = page.evaluate(
        """(({ counts, below, above }) => counts.reduce((a, b) => a + b, below + above))(
            state.panels[0].run.histograms.replay)"""
    )
    assert counted == 9024


def test_hostile_names_are_shown_not_run(open_trace: OpenTrace, hostile_trace: Path) -> None:
    page = open_trace(hostile_trace)
    assert page.title() == "tracekit: <b>hostile & co.sqlite"
    names = page.evaluate("state.panels[0].run.names")
    for name in HOSTILE_NAMES:
        assert printable(name) in names
    page.keyboard.press("N")
    for i in range(0, 600, 7):
        page.evaluate("(i) => select(state.panels[0], { table: state.panels[0].run.tables.kernel, i })", i)
    assert page.title() == "tracekit: <b>hostile & co.sqlite"
    assert page.locator("img").count() == 0
    assert "\u202e" not in page.content()


def test_dark_and_light_have_their_own_paper(open_trace: OpenTrace) -> None:
    page = open_trace(OPAQUE)
    paper = "theme['--paper']"
    page.emulate_media(color_scheme="light")
    settle(page)
    assert page.evaluate(paper) == "#ffffff"
    page.emulate_media(color_scheme="dark")
    settle(page)
    assert page.evaluate(paper) == "#14181d"


def test_the_minimap_moves_the_view(open_trace: OpenTrace) -> None:
    page = open_trace(PDL, fragment="#t=0..1000000")
    box = page.locator("#map").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] * 0.8, box["y"] + 10)
    settle(page)
    assert view(page)[0] > 100_000_000


def test_panels_with_data_of_their_own(open_trace: OpenTrace, page_with_panels: Path) -> None:
    page = open_trace(page_with_panels)
    assert page.locator("#budget text", has_text="data <b>").count() == 1
    assert page.locator("#budget text", has_text="-67.0 us").count() > 0
    assert page.locator("#prediction svg.main-svg").count() > 0
    page.locator("#inside canvas").scroll_into_view_if_needed()
    page.evaluate("select(state.inside, { table: state.inside.run.tables.sm, i: 3 })")
    assert "wait" in page.locator("#detail").inner_text()
    box = page.locator("#inside canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + 600, box["y"] + 40)
    page.mouse.wheel(0, -300)
    settle(page)
    assert page.evaluate("state.inside.view.t1 - state.inside.view.t0") < 82


def test_a_recording_without_kernels_has_no_empty_tables(open_trace: OpenTrace, only_opaque: Path) -> None:
    page = open_trace(only_opaque)
    for part in ("gaps", "sizes", "pairs", "steps"):
        assert page.locator(f"#{part}-box").is_hidden()
    page.keyboard.press("n")
    assert "no boundary to measure" in page.locator("#answer").inner_text()
