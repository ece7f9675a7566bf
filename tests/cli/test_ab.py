"""`kinetoscope ab`: real programs, run in turn."""

import os
import subprocess

import pytest

import kinetoscope
from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.comparison.measures import run_of
from kinetoscope.launcher.interleave import (
    Interleaved,
    checked_out,
    edited_code,
    parse_command,
    pinned,
    visible_percent,
)
from tests.comparison.test_runs import built
from tests.comparison.test_work import recorded
from tests.support.strict_json import read_strictly

pytest.importorskip("torch", reason="these programs compute with PyTorch")

TRAIN = """
import sys, torch

print("training", sys.argv[1:])
net = torch.nn.Linear(16, 16)
for number in range(6):
    # An optimizer of torch imports as much again as torch itself.
    with torch.profiler.record_function(f"ProfilerStep#{number}"):
        loss = net(torch.ones(4, 16)).sum()
        if sys.argv[1:]:
            loss = loss + 0
        loss.backward()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_programs_take_turns_and_are_compared(call, folder):
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    done = call(
        "ab",
        "--rounds",
        1,
        "--seed",
        7,
        "-o",
        "kept",
        "--json",
        "--",
        "train.py",
        "--",
        "python",
        "train.py",
        "extra",
    )
    # One recording a side proves nothing of times.
    assert done.exit_code == 2, done.stderr
    assert done.stderr.startswith("seed 7, ")
    values = read_strictly(done.stdout)
    assert {one["name"]: one["verdict"] for one in values["counts"]}["operators"] == "more"
    added = [
        one for one in values["times"] if one["kind"] == "line" and one["base_count"] != one["new_count"]
    ]
    assert "loss = loss + 0" in {one["detail"] for one in added}
    assert {"base-001.ktrace", "new-001.ktrace"} <= {path.name for path in (folder / "kept").iterdir()}
    assert (folder / "kept" / "new-001.log").read_text() == "training ['extra']\n"
    if allowed is not None:
        assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (StateError("it broke"), 3, "it broke")],
)
def test_rounds_are_told_without_a_terminal_and_not_lost_when_a_later_one_ends(
    call, folder, monkeypatch, failure, code, said
):
    runs = {
        side: run_of(built(1, noise=0.0, slower=slower)) for side, slower in (("base", 0.0), ("new", 0.2))
    }

    def record(self, side, number):
        if number == 3:
            raise failure
        return runs[side]

    monkeypatch.setattr(Interleaved, "_record", record)
    done = call("ab", "--seed", 7, "--rounds", 9, "--", "train.py", "--", "train.py", "extra")
    assert done.exit_code == code
    _, *rounds, last = filter(None, done.stderr.splitlines())
    assert [line.partition(":")[0] for line in rounds] == ["round 1 of at most 9", "round 2 of at most 9"]
    assert all("a step takes 10.0 ms in base, 12.0 ms in new" in line for line in rounds)
    assert last == f"kinetoscope: error: {said}"
    # The comparison of the two rounds.
    assert len(done.stdout.splitlines()) > 3


def test_one_program_runs_at_two_revisions(call, folder):
    def git(*words):
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    git("init", "-q")
    (folder / "inner").mkdir()
    for text in ("first", "second"):
        (folder / "inner" / "train.py").write_text(f"print({text!r})")
        git("add", ".")
        git("commit", "-qm", text)
    (folder / "inner" / "train.py").write_text("print('not committed')")
    here = folder / "inner"
    with checked_out("HEAD~1", folder / "a", here) as old, checked_out("HEAD", folder / "b", here) as new:
        assert [(one / "train.py").read_text() for one in (old, new)] == ["print('first')", "print('second')"]
    os.chdir(here)
    # Which of the two runs first depends on the seed. Neither imports torch, so the first one ends it.
    said = {
        seed: call("ab", "--seed", seed, "--rev", "HEAD~1", "--rev", "HEAD", "--", "train.py").stderr.strip()
        for seed in (1, 0)
    }
    assert {text.partition("printed last: ")[2].split()[0] for text in said.values()} == {"first", "second"}
    refused = call("ab", "--rev", "HEAD", "--rev", "nowhere", "--", "train.py")
    assert refused.exit_code == 3
    assert "git rev-parse failed" in refused.stderr
    assert len(git("worktree", "list").splitlines()) == 1


def recording_of(runs):
    return lambda _turns, side, number: runs[side][number - 1]


@pytest.fixture
def recordings():
    """Ten recordings a side whose steps vary by so much that a difference of 1 % does not show."""
    return {
        side: [run_of(built(first + number, noise=0.3)) for number in range(10)]
        for side, first in (("base", 1), ("new", 50))
    }


def test_the_time_that_a_comparison_needs_is_said_and_kept_to(call, folder, monkeypatch, recordings):
    monkeypatch.setattr(Interleaved, "_record", recording_of(recordings))
    done = call("ab", "--rounds", 10, "--", "train.py", "--", "train.py", "extra")
    assert done.exit_code == 2
    _, *rounds, last = filter(None, done.stderr.splitlines())
    assert len(rounds) == 10
    assert "1 % needs about " in last
    needed = int(last.partition("needs about ")[2].split()[0].replace(",", ""))
    close = float(last.partition("within ")[2].split()[0])
    assert needed == pytest.approx(10 * close**2, rel=0.1)
    done = call("ab", "--rounds", 10, "--time", "1ns", "--", "train.py", "--", "train.py", "extra")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()[1:2]] == ["round 1 of at most 10"]
    assert "round 2" not in done.stderr


def test_more_work_ends_the_rounds_and_is_the_exit_code(call, folder, monkeypatch):
    runs = {
        side: [recorded(number, width=width, noise=0.02) for number in range(9)]
        for side, width in (("base", 100), ("new", 113))
    }
    monkeypatch.setattr(Interleaved, "_record", recording_of(runs))
    done = call("ab", "--rounds", 9, "--", "train.py", "--", "train.py", "extra")
    assert done.exit_code == 1
    assert "most in 3 (Gate) at net.py:43" in done.stdout
    assert "round 5 of" in done.stderr
    assert "round 6 of" not in done.stderr
    done = call("ab", "--calibrate", "--rounds", 5, "--", "train.py")
    assert done.exit_code == 0


def test_what_a_diff_touches_is_the_code_of_the_tree(call, folder):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True
        )

    git("init", "-q")
    text = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n\n\ndef h():\n    return 3\n"
    (folder / "code.py").write_text(text)
    (folder / "text.txt").write_text("a")
    git("add", ".")
    git("commit", "-qm", "first")
    assert edited_code(folder, "HEAD") == frozenset()
    (folder / "code.py").write_text(text.replace("return 2", "return 4"))
    (folder / "text.txt").write_text("b")
    assert edited_code(folder, "HEAD") == {"A", "A.g"}
    (folder / "code.py").write_text(text.replace("return 2", "return").replace("return 3", "return 4"))
    (folder / "train.py").write_text("def broken(:\n")
    git("add", "train.py")
    assert edited_code(folder, "HEAD") == {"A", "A.g", "h"}
    with pytest.raises(ArgumentError, match="git diff failed"):
        edited_code(folder, "nowhere")


@pytest.mark.stress("it starts Python with torch four times")
def test_a_program_against_itself_shows_what_this_machine_can_see(call, folder):
    done = call("ab", "--calibrate", "--rounds", 2, "--", "train.py")
    assert done.exit_code == 0, done.stderr
    assert "recorded in turn and compared in pairs" in done.stdout
    assert "This machine shows differences of a step from " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--", "a.py"), 3, "there is 1 command, not 2"),
        (("--calibrate", "--", "a.py", "--", "b.py"), 3, "there are 2 commands, not 1"),
        (("--rev", "HEAD", "--", "a.py"), 3, "give --rev twice"),
        (("--", "python", "--", "b.py"), 3, "'python' names no program"),
        (("--processors", "0-x", "--", "a.py", "--", "b.py"), 3, "--processors 0-x"),
        (("--percent", "-1", "--", "a.py", "--", "b.py"), 3, "percent=-1.0"),
        (("--", "fails.py", "--", "fails.py"), 3, "exit code 3; it printed last: before the end"),
        (("--", "plain.py", "--", "plain.py"), 3, "plain.py never imported torch"),
    ],
)
def test_what_cannot_be_run_is_one_line(call, folder, arguments, code, said):
    (folder / "fails.py").write_text("print('before the end')\nraise SystemExit(3)")
    (folder / "plain.py").write_text("")
    done = call("ab", *arguments)
    assert done.exit_code == code
    assert said in done.stderr


def test_a_command_may_begin_with_python():
    first, second = (
        parse_command(["/usr/bin/python3.12", "-m", "train", "--fast"]),
        parse_command(["train.py"]),
    )
    assert (first.target, first.arguments, first.is_module) == ("train", ("--fast",), True)
    assert (second.target, second.arguments, second.is_module) == ("train.py", (), False)
    with pytest.raises(ArgumentError, match="names no program"):
        parse_command(["-c", "pass"])


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system cannot pin a process to processors"
)
def test_processors_are_given_back():
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    with pinned(f"{one}") as chosen:
        assert chosen == [one]
        assert os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == allowed
    with pytest.raises(ArgumentError, match="this process may use"), pinned("999999"):
        pass


def test_a_difference_shows_from_half_the_interval_on():
    few, many = (
        kinetoscope.compare(
            [built(seed) for seed in range(count)], [built(50 + seed) for seed in range(count)]
        )
        for count in (2, 8)
    )
    for found in (few, many):
        half = found.whole.high_ns - found.whole.change_ns
        assert visible_percent(found) == pytest.approx(100 * half / found.whole.base_ns)
    assert visible_percent(many) < visible_percent(few)
