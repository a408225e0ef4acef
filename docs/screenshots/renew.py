"""Take the pictures of this folder again: `python docs/screenshots/renew.py`. Needs Chromium."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tracekit.cli_report import report

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "sample_traces"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)
KERNELS = "state.panels[0].run.tables.kernel"
# Two kernels that overlap, and a launch whose call is in sight.
CLOSE = {
    "pdl_chain_node": f"""(() => {{ const k = {KERNELS};
        const i = k.gap.findIndex((gap, i) => i > 16100 && gap <= -192);
        goTo(state.panels[0], k, i, true); setView(k.start[i] - 3500, k.start[i] + 5500); }})()""",
    "hf_compile": f"""(() => {{ const k = {KERNELS};
        goTo(state.panels[0], k, 3000, false);
        setView(k.start[3000] - 40000, k.start[3000] + 60000); }})()""",
}
PARTS = {
    "gaps": "h2:has-text('Longest gaps')",
    "sizes": "h2:has-text('Gaps by size')",
    "pairs": "h2:has-text('Pairs of kernels')",
    "steps": "h2:has-text('Steps laid over')",
}


def take(page: Page, name: str) -> None:
    """The pictures of one report."""
    page.wait_for_selector("#page[data-ready=yes]", state="attached")
    page.screenshot(path=HERE / f"{name}_overview.png")
    for part, heading in PARTS.items():
        section = page.locator("section", has=page.locator(heading))
        section.screenshot(path=HERE / f"{name}_{part}.png")
    page.evaluate(CLOSE[name])
    page.wait_for_timeout(300)
    page.locator("#timeline").screenshot(path=HERE / f"{name}_close.png")


def main() -> None:
    """Every sample in light, the second in dark, and two compared."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, scheme in (("pdl_chain_node", "light"), ("hf_compile", "dark")):
            path = Path(folder) / f"{name}.html"
            report(SAMPLES / f"{name}.sqlite", path)
            page = browser.new_page(viewport={"width": 1100, "height": 660}, color_scheme=scheme)
            page.goto(path.as_uri())
            take(page, name)
        path = Path(folder) / "compare.html"
        traces = [SAMPLES / f"pdl_chain_{mode}.sqlite" for mode in ("node", "graph_level")]
        report(traces[0], path, compare=traces[1], force=True)
        page = browser.new_page(viewport={"width": 1100, "height": 1080})
        page.goto(path.as_uri())
        page.wait_for_selector("#page[data-ready=yes]", state="attached")
        page.screenshot(path=HERE / "compare.png")
        page.locator("#difference-box").screenshot(path=HERE / "compare_difference.png")
        browser.close()


if __name__ == "__main__":
    main()
