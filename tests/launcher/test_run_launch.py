"""`kinetoscope.launch`: a program in a process of its own, from Python."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.model.schema import SpanKind

pytest.importorskip("torch", reason="these programs compute with PyTorch")

TRAINING = """
import os, sys, torch
print(sys.argv[1:], os.getcwd(), os.environ["MARK"], __name__)
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(4):
    parameter.square().sum().backward()
    optimizer.step()
if sys.argv[1] == "killed":
    import signal
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[2]))
"""


COLLECTING = """
import gc, torch

def work():
    return torch.nn.Linear(8, 4)(torch.ones(2, 8)).sum()

work()
gc.collect()
work()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with programs, which is not the working directory."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "collect.py").write_text(COLLECTING)
    (tmp_path / "short.py").write_text("print('no torch')\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def marked(folder: Path) -> dict:
    """Where and with what a program runs."""
    return {"cwd": folder, "env": {**os.environ, "MARK": "here"}}


def test_what_is_asked_for_is_recorded(folder):
    asked = ("python_calls", "garbage_collection", "module_spans", "with_flops")
    result = kinetoscope.launch(folder / "collect.py", output="full", **dict.fromkeys(asked, True))
    with kinetoscope.open(result.path) as trace:
        names = trace.table("spans").column("name").to_pylist()
        assert names.count("work") == 2
        assert "Python GC" in names
        assert trace.run_info.with_flops
        assert (trace.column("spans", "kind") == SpanKind.MODULE).any()
        assert sum(trace.table("flops")["flops"].to_pylist()) >= 2 * 2 * 2 * 8 * 4


def test_a_program_runs_as_it_is_and_its_trace_and_summary_are_where_the_result_says(folder, capfd):
    asked = {"output": "out/first", "steps": (1, 3), "profile_memory": True, "summaries": "all"}
    environment = {**os.environ, "MARK": "here", "RANK": "2"}
    result = kinetoscope.launch("train.py", "ends", Path("3"), **asked, cwd=folder, env=environment)
    assert result == kinetoscope.LaunchResult(3, folder / "out" / "first-rank2.ktrace")
    shown = capfd.readouterr()
    assert shown.out == f"['ends', '3'] {folder} here __main__\n"
    assert shown.err == ""
    with kinetoscope.open(result.path) as trace:
        assert trace.info["program"]["command"] == ["train.py", "ends", "3"]
        assert trace.table("steps")["number"].to_pylist() == [1, 2]
        assert len(trace.columns("allocations")) > 0
        roots = {stack.split(";")[0] for stack in trace.table("spans")["stack"].to_pylist() if stack}
    assert roots == {f"{folder / 'train.py'}(7): <module>", f"{folder / 'train.py'}(8): <module>"}
    summaries = kinetoscope.Job.open(folder / "all" / "rank-00002.parquet").summaries
    assert summaries.select(["rank", "source"]).to_pylist() == [{"rank": 2, "source": str(result.path)}]


def test_some_steps_have_the_same_numbers_whatever_records_them_and_however_the_program_ends(folder):
    result = kinetoscope.launch("train.py", "ends", "0", steps=(1, 3), engine="kineto", **marked(folder))
    with kinetoscope.open(result.path) as trace:
        assert trace.table("steps")["number"].to_pylist() == [1, 2]
        assert trace.select_steps([2]).table("steps")["number"].to_pylist() == [2]
    # Of a killed program there is the recording.
    result = kinetoscope.launch("train", "killed", module=True, steps=(1, None), **marked(folder))
    assert result == kinetoscope.LaunchResult(-signal.SIGKILL, folder / "train-2.recording")
    with kinetoscope.open(result.path) as trace:
        assert not trace.complete
        assert not trace.info["complete"]
        assert trace.table("steps")["number"].to_pylist()[:2] == [1, 2]
        assert "aten::square" in trace.table("spans")["name"].to_pylist()


def test_a_summary_that_cannot_be_written_costs_no_trace(folder, capfd):
    result = kinetoscope.launch("collect.py", summaries="short.py/all", cwd=folder)
    assert result == kinetoscope.LaunchResult(0, folder / "collect.ktrace")
    assert "the summary could not be written to" in capfd.readouterr().err
    assert not (folder / "collect.recording").exists()
    with kinetoscope.open(result.path) as trace:
        # Of calls there is nothing, since nobody asked.
        assert not {"work"} & set(trace.table("spans")["name"].to_pylist())


def test_without_a_recording_there_is_no_path_even_beside_an_older_trace(folder, capfd):
    (folder / "elsewhere" / "old.ktrace").write_bytes(b"of an earlier run")
    result = kinetoscope.launch(folder / "short.py", output="old.ktrace")
    assert result == kinetoscope.LaunchResult(0, None)
    shown = capfd.readouterr()
    assert shown.out == "no torch\n"
    assert shown.err == "kinetoscope: nothing was recorded: the program never imported torch.\n"


INTERRUPTED = """
import sys
import kinetoscope
from kinetoscope.launcher import run
run._INTERRUPT_S = 0
try:
    kinetoscope.launch(sys.argv[1])
except KeyboardInterrupt:
    print("passed on")
"""
WAITING = """
import os, signal
try:
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_reaches_the_program_which_may_finish(tmp_path):
    (tmp_path / "waiting.py").write_text(WAITING)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "waiting.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\npassed on\n"), done.stderr


def test_without_a_folder_to_write_to_it_warns_and_says_where_the_trace_is(folder):
    with pytest.warns(UserWarning, match="the folder '/proc' cannot be written to") as warned:
        result = kinetoscope.launch(folder / "collect.py", cwd="/proc")
    assert warned[0].filename == __file__
    assert result.exit_code == 0
    with kinetoscope.open(result.path) as trace:
        assert len(trace.table("spans")) > 0
    shutil.rmtree(result.path.parent)
