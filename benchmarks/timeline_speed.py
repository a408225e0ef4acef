"""Size and speed of the report page: `python benchmarks/timeline_speed.py [KERNELS ...]`.

Writes a synthetic trace of each size, makes its times irregular (what is regular compresses to nothing),
writes the page, and opens it in headless Chromium: when the first picture stands, and how long a frame
takes while the wheel zooms and the pointer pans. Prints medians with the least and the most.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from benchmarks.make_trace import write_trace

RUNS = 5
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# One input event a frame; the times between the frames, of which the first is left out.
FRAMES = """async ({ steps, pan }) => {
    const canvas = document.querySelector("#timelines canvas");
    const box = canvas.getBoundingClientRect();
    const times = [];
    let last = 0;
    for (let k = 0; k < steps; k += 1) {
        const delta = pan ? { deltaX: k % 20 < 10 ? 60 : -60 } : { deltaY: k % 40 < 20 ? -150 : 150 };
        canvas.dispatchEvent(new WheelEvent("wheel", {
            ...delta, clientX: box.left + 700, clientY: box.top + 60, cancelable: true }));
        const now = await new Promise(requestAnimationFrame);
        if (k > 1) times.push(now - last);
        last = now;
    }
    return times;
}"""


@dataclass(frozen=True)
class Spread:
    """Median, least and most of some measurements."""

    values: tuple[float, ...]

    def words(self, unit: str, digits: int) -> str:
        middle = statistics.median(self.values)
        least, most = min(self.values), max(self.values)
        return f"{middle:.{digits}f} {unit} ({least:.{digits}f} to {most:.{digits}f})"


def roughen(path: Path) -> None:
    """Move every kernel and call by some ticks, and change every duration, by a fixed hash of the row."""
    noise = "((rowid * 2654435761 + {salt}) % 4294967296 / 65536 * 40503 % 65536)"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA synchronous=OFF")
        first, second = noise.format(salt=1), noise.format(salt=977)
        db.execute(
            f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + 32 * ({first} % 19), "
            f"end = end + 32 * ({second} % 41) - 32"
        )
        db.execute(
            f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = start + {first} % 331, "
            f"end = end - {second} % 907"
        )


def write_page(trace: Path, page: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of `tracekit report` in a process of its own."""
    code = "import sys; from pathlib import Path; from tracekit.cli_report import report; "
    code += "report(Path(sys.argv[1]), Path(sys.argv[2]))"
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, trace, page], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


def open_page(chromium: str, path: Path) -> tuple[float, float, list[float], list[float]]:
    """Seconds to the first picture and to the last chart, milliseconds of each frame zooming and panning."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        begin = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_selector("#page[data-ready=yes]", state="attached", timeout=60_000)
        ready = time.perf_counter() - begin
        first = page.evaluate("performance.getEntriesByName('first-picture')[0].startTime") / 1e3
        zoom, pan = _frames(page, pan=False), _frames(page, pan=True)
        browser.close()
    return first, ready, zoom, pan


def _frames(page: Page, *, pan: bool) -> list[float]:
    found: list[float] = page.evaluate(FRAMES, {"steps": 80, "pan": pan})
    return found


def measure(kernels: int, folder: Path, chromium: str) -> None:
    """Print one line a figure."""
    trace, page = folder / f"{kernels}.sqlite", folder / f"{kernels}.html"
    write_trace(trace, kernels, 100)
    roughen(trace)
    written = [write_page(trace, page) for _ in range(min(RUNS, 3))]
    opened = [open_page(chromium, page) for _ in range(RUNS)]
    zoom = [ms for _, _, frames, _ in opened for ms in frames]
    pan = [ms for _, _, _, frames in opened for ms in frames]
    print(f"{kernels:,} kernels")
    print(f"  size            {page.stat().st_size / 1e6:.2f} MB")
    print(f"  written in      {Spread(tuple(s for s, _ in written)).words('s', 2)}")
    print(f"  with            {max(mb for _, mb in written):.0f} MB at most")
    print(f"  first picture   {Spread(tuple(first for first, *_ in opened)).words('s', 2)}")
    print(f"  all charts      {Spread(tuple(ready for _, ready, *_ in opened)).words('s', 2)}")
    for word, frames in (("zoom", zoom), ("pan", pan)):
        over = sum(ms > 50 for ms in frames)
        spread = Spread(tuple(frames)).words("ms", 0)
        print(f"  a frame of {word:4} {spread}, {over} of {len(frames)} over 50 ms")


def main(sizes: list[int]) -> None:
    """Measure each size."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        for kernels in sizes:
            measure(kernels, Path(folder), chromium)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [10_000, 1_000_000, 5_000_000])
