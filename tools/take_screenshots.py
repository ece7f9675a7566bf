"""Takes pictures of every page of the viewer, light and dark, for README and documentation: docs/images/PAGE-THEME.png.

    python tools/take_screenshots.py TRACE [--folder docs/images] [--page overview ...]

Without a TRACE it records the demo's small GPT first. Needs Chromium, and `pip install "kinetoscope[view]" playwright`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import kinetoscope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
SIZE = {"width": 1280, "height": 800}
THEMES = ("light", "dark")
# What there is to be seen: the query of each page. `{…}` stands for something of the trace.
SHOWN = {
    "overview": "",
    "timeline": "?span={operator}",
    "operators": "?name={name}&kind=operator",
    "kernels": "",
    "modules": "",
    "stacks": "",
    "memory": "",
    "health": "",
    "sql": "",
}


def main() -> None:
    """Records where there is nothing to look at, and takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("trace", nargs="?", help="the trace to be seen")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images", help="where the pictures go")
    parser.add_argument("--page", action="append", choices=list(SHOWN), help="only this page (repeatable)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.trace or recorded(Path(folder)))
        options.folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures(path, options.folder, options.page or list(SHOWN)):
            print(f"{picture}  {picture.stat().st_size / 1000:.0f} kB")


def recorded(folder: Path) -> Path:
    """Records a training run, with everything that a page shows."""
    program = Path(kinetoscope.__file__).parent / "examples" / "train_gpt.py"
    command = [sys.executable, "-m", "kinetoscope", "run", "--shapes", "--memory", "-o", folder / "train_gpt"]
    subprocess.run([*command, program, "--steps", "12"], check=True, stdout=subprocess.DEVNULL)
    return folder / "train_gpt.ktrace"


def pictures(path: Path, folder: Path, names: list[str]) -> Iterator[Path]:
    """Takes the pictures one by one."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit("There is no Chromium here: install it (on Debian and Ubuntu: apt-get install chromium).")
    with kinetoscope.open(path) as trace:
        facts = known(trace)
        viewer = kinetoscope.view(trace, browser=False, wait=False)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=list(OPTIONS))
                for theme in THEMES:
                    for name in names:
                        target = folder / f"{name}-{theme}.png"
                        take(
                            browser, f"{viewer.address}#/{name}{SHOWN[name].format_map(facts)}", theme, target
                        )
                        yield target
                browser.close()
        finally:
            viewer.close()


def known(trace: kinetoscope.Trace) -> dict[str, object]:
    """What the queries need: a span of the operator with the most self time, and its name."""
    table = trace.table("ops").to_pylist()
    name = next((row["name"] for row in table if row["kind"] == "operator"), "")
    texts, ids = trace.strings, trace.column("spans", "name")
    rows = (ids == texts.index(name)).nonzero()[0] if name in texts else []
    return {"name": name.replace(":", "%3A"), "operator": int(rows[len(rows) // 2]) if len(rows) else ""}


def take(browser: Browser, address: str, theme: str, target: Path) -> None:
    """Takes one picture, once nothing on the page is on its way any more."""
    page: Page = browser.new_page(viewport=SIZE, color_scheme=theme)  # type: ignore[arg-type]
    page.goto(address)
    page.wait_for_function("() => document.querySelector('main')?.childElementCount > 0")
    page.wait_for_load_state("networkidle")
    page.wait_for_function("() => !document.querySelector('.waiting')")
    # Canvases are drawn in the frame after.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=target, animations="disabled")
    page.close()
    shrink(target)


def shrink(target: Path) -> None:
    """Makes the file smaller where a program that can do it is installed."""
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--skip-if-larger", target], check=False)
    elif shutil.which("optipng"):
        subprocess.run(["optipng", "-quiet", target], check=False)


if __name__ == "__main__":
    main()
