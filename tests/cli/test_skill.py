"""`kinetoscope skill`: what it tells agents to call exists, and does what it says."""

import json
import re
import shlex

import pytest

import kinetoscope
from kinetoscope.cli.skill import PATH
from tests.support import warm_python

TEXT = PATH.read_text(encoding="utf-8")
LINES = [
    line for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()
]

PROGRAM = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


def test_the_text_and_its_path_are_printed(call):
    shown = call("skill")
    assert shown.stdout.rstrip("\n") == TEXT.rstrip("\n")
    assert shown.stderr == f"{PATH}\n"


def test_it_begins_with_a_name_and_a_description():
    assert re.match(r"---\nname: kinetoscope\ndescription: \S.+\n---\n", TEXT)


def test_each_of_its_commands_works_on_a_recording_of_a_program(call, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="what is recorded is a torch program")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    for line in LINES:
        program, *words = shlex.split(line)
        assert program == "kinetoscope"
        if words[0] == "ab":
            continue
        if words[0] == "run":
            main = f"from kinetoscope.cli import main; main({words!r})"
            done = warm_python.run("-c", main, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        else:
            shown = call(*words)
            assert shown.exit_code == 0, shown.stderr
            assert json.loads(shown.stdout)


@pytest.mark.stress("it starts Python with torch four times")
def test_its_comparison_of_two_programs_works(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (words,) = (shlex.split(line)[1:] for line in LINES if line.startswith("kinetoscope ab "))
    main = f"from kinetoscope.cli import main; main({[*words[:1], '--rounds', '2', *words[1:]]!r})"
    done = warm_python.run("-c", main, cwd=tmp_path)
    assert "base" in json.loads(done.stdout), done.stderr


def test_its_tables_exist(trace_path):
    named = re.findall(r"`(\w+)`", re.search(r"Other tables: (.*?)\. For", TEXT, re.DOTALL).group(1))
    tables = kinetoscope.open(trace_path).table_names
    assert named
    assert set(named) <= set(tables)
