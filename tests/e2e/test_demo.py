"""The demo as a visitor sees it, without and with a terminal."""

import contextlib
import os
import pty
import re
import threading
from itertools import pairwise

import pytest

import kinetoscope
from kinetoscope.cli import demo
from tests.support import warm_python

pytest.importorskip("torch", reason="the demo trains with PyTorch")


def on_a_terminal(folder, *words: str, columns: int, first: str = "") -> tuple[int, str]:
    """Runs the command on a terminal of its own, after some lines of Python; returns the exit code and all that was shown."""
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
        command = f"{first}\nfrom kinetoscope.cli import main\nmain({[*words]!r})"
        done = warm_python.run("-c", command, cwd=folder, env=environment, stdout=follower, stderr=follower)
    finally:
        os.close(follower)
        reader.join()
        os.close(leader)
    return done.returncode, shown.decode()


PARTS = (
    "1  A slow training run",
    "2  Where the time of a step goes",
    "3  The line",
    "4  The mended run",
    "5  The proof",
    "What next",
)


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory):
    """A run of the demo, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("demo")
    done = warm_python.run("-m", "kinetoscope", "demo", "--steps", "4", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, folder


def test_the_demo_finds_its_mistake_and_proves_that_mending_it_helps(demonstrated):
    done, _ = demonstrated
    places = [done.stdout.index(part) for part in PARTS]
    assert places == sorted(places)
    run, time, line, mended, proof, what_next = (
        done.stdout[start:end] for start, end in pairwise([*places, len(done.stdout)])
    )
    assert "step 4/4  loss" in run
    assert re.search(r"Each step runs [\d,]+ operators", run)
    assert re.search(r"floor +[\d.]+ ms", time)
    assert "tiny-operators" in line
    marked = next(text for text in line.splitlines() if text.strip().startswith("> "))
    assert "functional.log_softmax(row, dim=-1)[target]" in marked
    assert f"train_gpt.py:{marked.split()[1]} runs" in line
    assert "-         total = total - functional.log_softmax" in mended
    assert "+     return functional.cross_entropy(logits, targets)" in mended
    losses = re.search(r"was ([\d.]+) and is ([\d.]+)\.", proof)
    assert losses is not None
    assert float(losses[1]) == pytest.approx(float(losses[2]), abs=0.002)
    assert "fewer operators" in proof
    assert "unconfirmed" not in proof
    assert "kinetoscope run train.py" in what_next


def test_the_demo_leaves_the_traces_that_it_compared(demonstrated):
    folder = demonstrated[1] / "kinetoscope-demo"
    rounds = ("", *(f"-{number}" for number in range(1, demo.ROUNDS + 1)))
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}{number}.ktrace" for name in ("mended", "slow") for number in rounds
    )
    codes = {}
    for name in ("slow", "mended"):
        with kinetoscope.open(folder / f"{name}.ktrace") as trace:
            assert trace.complete
            assert trace.table("steps").num_rows == 4
            assert trace.info["program"]["command"][:2] == ["-m", "kinetoscope.examples.train_gpt"]
            codes[name] = set(trace.findings()["code"].to_pylist())
    assert "tiny-operators" in codes["slow"] - codes["mended"]


def test_on_a_terminal_the_loss_is_one_line_in_colour(tmp_path):
    # What is shown of more rounds is tested without a terminal.
    once = "from kinetoscope.cli import demo\ndemo.ROUNDS = 1"
    code, shown = on_a_terminal(tmp_path, "demo", "--steps", "3", "-o", "here", columns=60, first=once)
    assert code == 0, shown
    assert "\x1b[" in shown
    assert "step 3/3" in shown
    assert {path.suffix for path in (tmp_path / "here").iterdir()} == {".ktrace"}


# It waits until the line was written again, or is no longer written.
WATCHING = """
import threading, torch

def written():
    # How many bytes the process has written, see /proc in proc(5).
    return open("/proc/self/io").read().split()[3]

lines = [thread for thread in threading.enumerate() if thread.name == "kinetoscope-progress"]
torch.ones(8).tanh()
{says}
before = written()
for line in lines:
    while line.is_alive() and ({says!r} or written() == before):
        line.join(0.05)
"""


@pytest.mark.parametrize(("talks", "rewritten"), [(False, True), (True, False)])
def test_the_progress_line_stops_where_the_program_talks(tmp_path, talks, rewritten):
    (tmp_path / "train.py").write_text(WATCHING.format(says="print('hello', flush=True)" if talks else ""))
    code, shown = on_a_terminal(tmp_path, "run", "--no-summary", "train.py", columns=80)
    assert code == 0, shown
    assert shown.startswith("kinetoscope: recording to train.recording (native engine)\r\n")
    # Going up a line and writing it again would hit the program's own.
    assert ("\x1b[1A" in (shown.partition("hello")[2] if talks else shown)) is rewritten
    assert ("hello\r\n" in shown) is talks


def test_no_progress_is_shown_where_nobody_looks(tmp_path):
    (tmp_path / "train.py").write_text(WATCHING.format(says=""))
    done = warm_python.run("-m", "kinetoscope", "run", "--no-summary", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == done.stderr == ""
