"""Record `kinetoscope demo` on a terminal, and draw the recording as the animated picture at the top of the README.

    python tools/record_demo.py             record, and draw
    python tools/record_demo.py --draw      draw what is recorded again
    python tools/record_demo.py --check     fail unless the picture is what the recording draws

The recording, docs/images/demo.cast, has the format of asciinema (version 2): https://docs.asciinema.org/manual/asciicast/v2/. Other programs should be quiet meanwhile,
since it shows the times of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.ansi import AnsiDecoder
from rich.terminal_theme import DIMMED_MONOKAI

if TYPE_CHECKING:
    from rich.style import Style
    from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
CAST = ROOT / "docs" / "images" / "demo.cast"
PICTURE = CAST.with_suffix(".svg")
COLUMNS, ROWS = 100, 30
# Sizes in units of the picture.
CHARACTER, LINE, MARGIN, BAR, FONT = 7.8, 18, 16, 30, 13
# The pace of reading, not of the run.
LINE_S, PART_S, END_S = 0.12, 3.2, 6.0
_PROMPT = "$ "
_CONTROL = re.compile(r"\x1b\[(\d*)([A-K])|\x1b\[\?25[lh]|(\r)|(\n)")
_HEADING = re.compile(r"\d  |What next")


def main() -> None:
    """Record, draw or check, as asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--draw", action="store_true", help="draw the stored recording")
    parser.add_argument("--check", action="store_true", help="only compare the picture with the recording")
    asked = parser.parse_args()
    if not (asked.draw or asked.check):
        CAST.write_text(record(), encoding="utf-8")
    picture = draw(CAST.read_text(encoding="utf-8"))
    if asked.check:
        if PICTURE.read_text(encoding="utf-8") != picture:
            sys.exit(f"{PICTURE} is not what {CAST} draws: run {Path(__file__).name} --draw")
        return
    PICTURE.write_text(picture, encoding="utf-8")
    print(f"{PICTURE}: {len(picture.encode()):,} bytes")


def record() -> str:
    """Run the demo on a terminal of its own, and return the recording."""
    leader, follower = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "TERM": "xterm-256color",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("NO_COLOR", None)
    head = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "timestamp": int(datetime.now(UTC).timestamp()),
        "command": "kinetoscope demo",
        "title": f"kinetoscope demo, recorded {datetime.now(UTC):%Y-%m-%d} at {commit()}",
    }
    lines = [json.dumps(head)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        program = subprocess.Popen(
            [sys.executable, "-m", "kinetoscope", "demo"],
            cwd=folder,
            env=environment,
            stdout=follower,
            stderr=follower,
        )
        os.close(follower)
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # on Linux, that nobody holds the other end any more
                break
            if not piece:
                break
            lines.append(json.dumps([round(time.monotonic() - started, 2), "o", piece.decode()]))
        if program.wait():
            sys.exit("the demo failed: run `kinetoscope demo` to see why")
    return "\n".join(lines) + "\n"


def commit() -> str:
    """The commit that is checked out, short."""
    found = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def shown_lines(cast: str) -> list[Text]:
    """The lines that a recording leaves on the terminal, without the limit of its height, with their colors."""
    output = "".join(json.loads(line)[2] for line in cast.splitlines()[1:])
    lines, row, place, rewritten = [""], 0, 0, False
    for found in [*_CONTROL.finditer(output), None]:
        text = output[place : found.start() if found else len(output)]
        if text:
            lines[row] = text if rewritten else lines[row] + text
            rewritten = False
        if found is None:
            break
        place = found.end()
        number, code, start, newline = found.groups()
        if newline:
            row, rewritten = row + 1, False
            if row == len(lines):
                lines.append("")
        elif start:
            rewritten = True
        elif code == "A":
            row = max(0, row - int(number or 1))
        elif code == "K":
            lines[row] = ""
    return list(AnsiDecoder().decode("\n".join(lines).rstrip()))


def draw(cast: str) -> str:
    """Draw a recording as an SVG file in which the lines appear at the pace of reading, and the terminal scrolls.

    Args:
        cast: The recording.
    """
    title = json.loads(cast.splitlines()[0])["title"]
    lines = [*AnsiDecoder().decode(f"{_PROMPT}kinetoscope demo"), *shown_lines(cast)]
    times = appearing_s(lines)
    whole_s = times[-1] + END_S
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), BAR + ROWS * LINE + MARGIN
    rows = [
        f'<text y="{number * LINE + FONT}">{spans}</text>'
        for number, line in enumerate(lines)
        if (spans := spans_of(line))
    ]
    below = len(lines) * LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            "<style>",
            f"text{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d9d9d9;white-space:pre}}",
            f".s{{animation:s {whole_s:.2f}s step-end infinite}}.c{{transform:translateY({below}px);animation:c {whole_s:.2f}s step-end infinite}}",
            keyframes(
                "s", [(at, -max(0, number + 1 - ROWS) * LINE) for number, at in enumerate(times)], whole_s
            ),
            keyframes("c", [(at, (number + 1) * LINE) for number, at in enumerate(times)], whole_s),
            "@media (prefers-reduced-motion:reduce){.s,.c{animation:none}}",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#191919"/>',
            '<circle cx="20" cy="15" r="5" fill="#ff5f57"/><circle cx="38" cy="15" r="5" fill="#febc2e"/><circle cx="56" cy="15" r="5" fill="#28c840"/>',
            f'<text x="{width / 2:g}" y="19" text-anchor="middle" style="fill:#8a8a8a;font-size:11px">{escape(title)}</text>',
            f'<svg x="{MARGIN}" y="{BAR}" width="{width - 2 * MARGIN}" height="{ROWS * LINE}"><g class="s">',
            *rows,
            f'<rect class="c" width="{width}" height="{below + ROWS * LINE}" fill="#191919"/>',
            "</g></svg>",
            "</svg>",
            "",
        ]
    )


def appearing_s(lines: list[Text]) -> list[float]:
    """When each line appears: one after the other, with time to read before each part."""
    now, found = 0.0, []
    for line in lines:
        if _HEADING.match(line.plain):
            now += PART_S
        now += LINE_S
        found.append(now)
    return found


def keyframes(name: str, moves: list[tuple[float, int]], whole_s: float) -> str:
    """An animation that moves an element down to a place at each moment."""
    steps, before = [], None
    for at_s, place in [(0.0, moves[0][1]), *moves]:
        if place != before:
            steps.append(f"{100 * at_s / whole_s:.2f}%{{transform:translateY({place}px)}}")
        before = place
    return f"@keyframes {name}{{{''.join(steps)}}}"


def spans_of(line: Text) -> str:
    """A line as elements of a picture, each of one style, at its column; empty of an empty line."""
    found, plain = [], line.plain
    edges = sorted({0, len(plain), *(edge for span in line.spans for edge in (span.start, span.end))})
    for first, last in pairwise(edges):
        text = plain[first:last]
        if not text.strip():
            continue
        # What a style begins with would be at its column, too, without spaces that viewers may drop.
        start = first + len(text) - len(text.lstrip())
        text = text.strip()
        style = css_of([span.style for span in line.spans if span.start <= first and last <= span.end])
        found.append(
            f'<tspan x="{start * CHARACTER:g}" textLength="{len(text) * CHARACTER:g}"{style}>{escape(text)}</tspan>'
        )
    return "".join(found)


def css_of(styles: list[Style | str]) -> str:
    """The style attribute of a text; empty without any."""
    rules = {}
    for style in styles:
        if isinstance(style, str):
            continue
        if style.bold:
            rules["font-weight"] = "bold"
        if style.dim:
            rules["opacity"] = "0.65"
        if style.color is not None and not style.color.is_default:
            red, green, blue = style.color.get_truecolor(DIMMED_MONOKAI)
            rules["fill"] = f"#{red:02x}{green:02x}{blue:02x}"
    return f' style="{";".join(f"{name}:{value}" for name, value in rules.items())}"' if rules else ""


if __name__ == "__main__":
    main()
