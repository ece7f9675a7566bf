"""The demo as a visitor sees it, without and with a terminal."""

import contextlib
import os
import pty
import threading

import pytest

import kinetoscope
from tests.support import warm_python

pytest.importorskip("torch", reason="the demo trains with PyTorch")


def on_a_terminal(folder, *words: str, columns: int) -> tuple[int, str]:
    """Runs the command on a terminal of its own; returns the exit code and all that was shown."""
    leader, follower = pty.openpty()
    shown = bytearray()

    def read() -> None:
        # That nobody holds the other end any more is an error on Linux.
        with contextlib.suppress(OSError):
            while piece := os.read(leader, 65536):
                shown.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        done = warm_python.run(
            "-m", "kinetoscope", *words, cwd=folder, env=environment, stdout=follower, stderr=follower
        )
    finally:
        os.close(follower)
        reader.join()
        os.close(leader)
    return done.returncode, shown.decode()


def test_the_demo_finds_its_mistake_and_compares_with_the_mended_program(tmp_path):
    done = warm_python.run("-m", "kinetoscope", "demo", "--steps", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    parts = ("1/3  Training a small GPT", "2/3  Training the same GPT", "3/3  Comparing", "What next")
    places = [done.stdout.index(part) for part in parts]
    assert places == sorted(places)
    for part in ("step    4/4  loss", "modules", "aten::", "train_gpt.py:", "peak", "overhead"):
        assert part in done.stdout
    assert "fewer operators" in done.stdout[places[2] :]
    left = sorted(path.name for path in (tmp_path / "kinetoscope-demo").iterdir())
    assert left == ["mended.json.gz", "mended.ktrace", "slow.json.gz", "slow.ktrace"]
    codes = {}
    for name in ("slow", "mended"):
        with kinetoscope.open(tmp_path / "kinetoscope-demo" / f"{name}.ktrace") as trace:
            assert trace.complete
            assert trace.table("steps").num_rows == 4
            assert trace.info["program"]["command"][:2] == ["-m", "kinetoscope.examples.train_gpt"]
            codes[name] = set(trace.findings()["code"].to_pylist())
    assert "tiny-operators" in codes["slow"] - codes["mended"]
    assert done.stdout.index("train_gpt.py:") < places[1]


def test_on_a_terminal_the_loss_is_one_line_in_colour(tmp_path):
    code, shown = on_a_terminal(tmp_path, "demo", "--steps", "3", "-o", "here", columns=60)
    assert code == 0, shown
    assert "\x1b[" in shown
    assert "step 3/3" in shown
    assert sorted(path.suffix for path in (tmp_path / "here").iterdir()) == [
        ".gz",
        ".gz",
        ".ktrace",
        ".ktrace",
    ]


QUIET = """
import time, torch
x, end = torch.ones(8, 8), time.monotonic() + 1.6
while time.monotonic() < end:
    x = (x @ x).tanh()
"""


@pytest.mark.parametrize(("talks", "rewritten"), [(False, True), (True, False)])
def test_the_progress_line_stops_where_the_program_talks(tmp_path, talks, rewritten):
    (tmp_path / "train.py").write_text(f"import torch\nprint('hello')\n{QUIET}" if talks else QUIET)
    code, shown = on_a_terminal(tmp_path, "run", "--no-summary", "train.py", columns=80)
    assert code == 0, shown
    assert shown.startswith("kinetoscope: recording to train.recording (native engine)\r\n")
    # Going up a line and writing it again would hit the program's own.
    assert ("\x1b[1A" in (shown.partition("hello")[2] if talks else shown)) is rewritten
    assert ("hello\r\n" in shown) is talks


def test_no_progress_is_shown_where_nobody_looks(tmp_path):
    (tmp_path / "train.py").write_text(QUIET)
    done = warm_python.run("-m", "kinetoscope", "run", "--no-summary", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == done.stderr == ""
