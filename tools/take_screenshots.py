"""Take screenshots of every page of the viewer, light and dark, as docs/images/PAGE-THEME.png.

    python tools/take_screenshots.py [TRACE] [--gpu TRACE] [--job SUMMARIES] [--folder docs/images] [--page overview ...]

Without TRACE, the demo's small GPT is recorded first. The screenshots of kernels, and those whose names begin with `gpu-`, need a
trace with a device; that of ranks needs summaries, such as those of `tools.synthesize_ranks`. Needs Chromium and `pip install playwright pillow`; without pillow the files are larger.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import kinetoscope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
SIZE = {"width": 1280, "height": 800}
# Pages of which more than a screen is worth seeing.
HEIGHTS = {"ranks": 1240}
THEMES = ("light", "dark")
# Page and query by screenshot. `{…}` is replaced by a value of the trace.
HOST = {
    "overview": "overview",
    "timeline": "timeline?span={span}",
    "operators": "operators?name={name}&kind=operator",
    "modules": "modules",
    "stacks": "stacks",
    "memory": "memory",
    "health": "health",
}
JOB = {"ranks": "ranks?rank={rank}&step={step}"}
DEVICE = {
    "gpu-overview": "overview",
    "gpu-timeline": "timeline?span={kernel}",
    "kernels": "kernels?name={kernel_name}",
}


def main() -> None:
    """Record a trace if none was passed, and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("trace", nargs="?", help="the trace to show")
    parser.add_argument("--gpu", help="a trace with a device, needed for screenshots of kernels")
    parser.add_argument("--job", help="a folder of summaries, needed for the screenshot of ranks")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "docs" / "images", help="the folder of the screenshots"
    )
    parser.add_argument(
        "--page", action="append", choices=[*HOST, *DEVICE, *JOB], help="only this screenshot (repeatable)"
    )
    options = parser.parse_args()
    wanted = options.page or [*HOST, *DEVICE, *JOB]
    host = {name: HOST[name] for name in wanted if name in HOST}
    device = {name: DEVICE[name] for name in wanted if name in DEVICE} if options.gpu else {}
    job = {name: JOB[name] for name in wanted if name in JOB} if options.job else {}
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for path, shown in ((options.trace, host), (options.gpu, device), (options.job, job)):
            if not shown:
                continue
            opened = (
                kinetoscope.Job.open(path)
                if shown is job
                else kinetoscope.open(path or recorded(Path(folder)))
            )
            for picture in pictures(opened, options.folder, shown):
                print(f"{picture}  {picture.stat().st_size / 1000:.0f} kB")


def recorded(folder: Path) -> Path:
    """Record a training run with all options that pages need."""
    command = [sys.executable, "-m", "kinetoscope", "run", "--shapes", "--memory", "-o", folder / "train_gpt"]
    program = ["-m", "kinetoscope.examples.train_gpt", "--steps", "12"]
    subprocess.run([*command, *program], check=True, stdout=subprocess.DEVNULL)
    return folder / "train_gpt.ktrace"


def pictures(
    opened: kinetoscope.Trace | kinetoscope.Job, folder: Path, shown: dict[str, str]
) -> Iterator[Path]:
    """Take the screenshots of a trace or a job one by one."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit("Chromium was not found: install it (on Debian and Ubuntu: apt-get install chromium).")
    facts = query_values(opened) if isinstance(opened, kinetoscope.Trace) else job_values(opened)
    with kinetoscope.view(opened, browser=False, wait=False) as viewer, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(OPTIONS))
        for theme in THEMES:
            for name, page in shown.items():
                target = folder / f"{name}-{theme}.png"
                size = {**SIZE, "height": HEIGHTS.get(name, SIZE["height"])}
                take(browser, f"{viewer.address}#/{page.format_map(facts)}", theme, target, size)
                yield target
        browser.close()


def query_values(trace: kinetoscope.Trace) -> dict[str, object]:
    """Return the values for queries: a span and the name of the operator, and of the kernel, with the most self time."""
    operators = (row["name"] for row in trace.table("ops").to_pylist() if row["kind"] == "operator")
    kernels = (row["name"] for row in trace.table("kernels").to_pylist())
    name, kernel = next(operators, ""), next(kernels, "")
    return {
        "name": quote(name),
        "span": one_of(trace, name),
        "kernel_name": quote(kernel),
        "kernel": one_of(trace, kernel),
    }


def job_values(job: kinetoscope.Job) -> dict[str, object]:
    """Return the latest rank and a step from the middle of the run."""
    rows, steps = job.ranks().to_pylist(), sorted(set(job.section("steps")["step"].to_pylist()))
    return {"rank": max(rows, key=lambda row: row["late_ns"] or 0)["rank"], "step": steps[len(steps) // 2]}


def one_of(trace: kinetoscope.Trace, name: str) -> int | str:
    """Return a span with this name from the middle of the run."""
    texts, names = trace.strings, trace.column("spans", "name")
    rows = (names == texts.index(name)).nonzero()[0] if name in texts else []
    return int(rows[len(rows) // 2]) if len(rows) else ""


def take(browser: Browser, address: str, theme: str, target: Path, size: dict[str, int]) -> None:
    """Take one screenshot after the page has finished loading."""
    page: Page = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page.goto(address)
    page.wait_for_function("() => document.querySelector('main')?.childElementCount > 0")
    page.wait_for_load_state("networkidle")
    page.wait_for_function("() => !document.querySelector('.waiting')")
    # Canvases are drawn in the next frame.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=target, animations="disabled")
    page.close()
    shrink(target)


def shrink(target: Path) -> None:
    """Reduce the file to 256 colors, about a third of its size, if Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(target) as picture:
        few = picture.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


if __name__ == "__main__":
    main()
