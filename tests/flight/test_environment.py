"""Programs that are left on from outside."""

import json
import os
import subprocess
import sys

import kinetoscope
from tests.support import warm_python

PROGRAM = """
{first}
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
raise ValueError("the end")
"""


def run(folder, words, first="", *, torch_is_imported=False, **environment):
    """Runs the program in a new Python, or in one in which torch was imported before."""
    (folder / "train.py").write_text(PROGRAM.format(first=first))
    environment = {
        **os.environ,
        "KINETOSCOPE_DIR": str(folder / "jobs"),
        "KINETOSCOPE_KEEP": "8MiB",
        **environment,
    }
    if torch_is_imported:
        return warm_python.run(*words, "train.py", cwd=folder, env=environment)
    return subprocess.run(
        [sys.executable, *words, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def check(folder, done):
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: the end\n")
    assert "kinetoscope" not in done.stderr
    (path,) = (folder / "jobs").glob("train-*/0/incidents/*-crash/rank0.recording")
    told = json.loads(path.with_suffix(".json").read_text())
    # Ten steps, 0 to 9, have ended.
    assert told["step"] == 10
    assert told["what"].startswith("ValueError: the end")
    with kinetoscope.open(path) as trace:
        assert "aten::linear" in trace.table("spans")["name"].to_pylist()


def test_run_leave_on(tmp_path):
    check(tmp_path, run(tmp_path, ["-m", "kinetoscope", "run", "--leave-on"]))
    assert not list(tmp_path.glob("*.ktrace"))


def test_the_environment_leaves_a_program_on_that_imports_us(tmp_path):
    check(tmp_path, run(tmp_path, [], "import kinetoscope", KINETOSCOPE="on"))


def test_the_environment_leaves_a_program_on_that_has_imported_torch_before(tmp_path):
    # As servers have when they load their plugins.
    check(tmp_path, run(tmp_path, [], "import kinetoscope", torch_is_imported=True, KINETOSCOPE="on"))


def test_nobody_is_left_on_unasked(tmp_path):
    run(tmp_path, [], "import kinetoscope", torch_is_imported=True)
    assert not (tmp_path / "jobs").exists()


def test_a_wrong_setting_is_one_line(tmp_path):
    settings = {"KINETOSCOPE": "on", "KINETOSCOPE_BUDGET": "much"}
    done = run(tmp_path, [], "import kinetoscope", torch_is_imported=True, **settings)
    assert done.stderr.startswith("kinetoscope: ")
    assert "the program is not left on: budget='much'" in done.stderr
    assert done.stderr.endswith("ValueError: the end\n")


def test_options_of_traces_are_refused(tmp_path):
    words = ["-m", "kinetoscope", "run", "--leave-on", "--memory", "-o", "x"]
    done = run(tmp_path, words, torch_is_imported=True)
    assert done.returncode != 0
    assert "--memory" in done.stderr
    assert "cannot be combined with --leave-on" in done.stderr
