"""A real browser for the report page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import tracekit
from tracekit.cli_report import report
from tracekit.report.timeline import write_timeline
from tracekit.report.timeline_data import InKernel, Prediction, StepPanels, collect_page

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
HOSTILE_NAMES = (
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "\"quotes\" 'and' `ticks` ${document.title} & &amp; \\",
    "right\u202eto left\u200f",
    "control\x1b[31m\x07\x00characters",
    "void kernel<" + "int, " * 2000 + "int>()",
)

RECORDS = (
    (0, 0, 0, 10),
    (0, 2, 10, 40),
    (3, 0, 0, 12),
    (3, 1, 12, 40),
    (3, 2, 52, 30),
)  # SM, kind, start, ns

OpenTrace = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes the report of a trace once a session."""
    folder = tmp_path_factory.mktemp("pages")
    done: dict[tuple[Path, Path | None], Path] = {}

    def write(trace: Path, compare: Path | None = None) -> Path:
        key = (trace, compare)
        if key not in done:
            done[key] = folder / f"{len(done)}.html"
            report(trace, done[key], compare=compare, force=compare is not None)
        return done[key]

    return write


@pytest.fixture
def open_trace(browser: Browser, written: Callable[..., Path]) -> Iterator[OpenTrace]:
    """Opens the report of a trace; afterwards nothing may have been asked for and no script have failed."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    complaints: list[str] = []
    requests: list[str] = []

    def open_it(trace: Path | str, compare: Path | str | None = None, fragment: str = "") -> Page:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page_file = SAMPLES / trace
        if page_file.suffix != ".html":
            page_file = written(page_file, SAMPLES / compare if compare else None)
        page.goto(f"{page_file.as_uri()}{fragment}")
        page.wait_for_selector("#page[data-ready=yes]", state="attached")
        return page

    yield open_it
    context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="session")
def page_with_panels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with made-up numbers in the panels that a trace alone does not fill."""
    sm, kind, start, duration = (np.array(row, dtype=np.int64) for row in zip(*RECORDS, strict=True))
    panels = StepPanels(
        budget=(("data <b>", 322_000.0), ("white space", 300_000.0), ("tracing", -67_000.0)),
        prediction=Prediction((0.0, 1000.0), (322_000.0, 888_000.0), 555_000.0),
        inside=InKernel(sm, kind, start, duration, np.array([1, 4])),
    )
    path = tmp_path_factory.mktemp("panels") / "page.html"
    write_timeline([collect_page(tracekit.read(SAMPLES / "hf_compile.sqlite"), panels=panels)], path)
    return path


@pytest.fixture(scope="session")
def hostile_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hf_compile.sqlite with names that would like to be run."""
    path = tmp_path_factory.mktemp("hostile") / "<b>hostile & co.sqlite"
    shutil.copy(SAMPLES / "hf_compile.sqlite", path)
    path.chmod(0o644)
    db = sqlite3.connect(path)
    used = db.execute("SELECT DISTINCT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1").fetchall()
    for (name_id,), name in zip(used, HOSTILE_NAMES, strict=False):
        db.execute("UPDATE StringIds SET value = ? WHERE id = ?", (name, name_id))
    db.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = 'decode_step'", (HOSTILE_NAMES[0],))
    db.execute(
        "UPDATE StringIds SET value = ? WHERE value = 'decode_step'", (HOSTILE_NAMES[0] + HOSTILE_NAMES[3],)
    )
    db.commit()
    db.close()
    return path


@pytest.fixture(scope="session")
def only_opaque(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose kernels are all inside replays recorded as a whole."""
    path = tmp_path_factory.mktemp("opaque") / "only_opaque.sqlite"
    shutil.copy(SAMPLES / "pdl_chain_graph_level.sqlite", path)
    path.chmod(0o644)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    db.commit()
    db.close()
    return path
