"""Unmodified programs in processes of their own, with torch's profiler, with ours in its place, and under `run --install`."""

import json

import pytest

import kinetoscope
from tests.support import warm_python
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

TRAINER = """
import sys
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
import torch, torch.profiler
from torch.autograd.profiler import record_function

class Profiler:
    "What trainers do: keep the class, check instances, drive start, step and stop by hand."
    def __init__(self, folder, make=profile):
        self.inner = make(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
            on_trace_ready=tensorboard_trace_handler(folder, "worker"), record_shapes=True,
        )
        assert isinstance(self.inner, torch.profiler.profile)

    def __enter__(self):
        self.inner.start()
        return self

    def __exit__(self, *error):
        self.inner.stop()

with Profiler(sys.argv[1]) as profiler:
    for step in range(9):
        with record_function("batch"):
            torch.nn.Linear(8, 4)(torch.ones(2, 8)).sum().backward()
        profiler.inner.step()
print(type(profiler.inner).__module__)
"""


@pytest.mark.parametrize(
    ("first", "command", "module_name"),
    [
        ("", ["{script}", "{folder}"], "torch.profiler.profiler"),
        ("import kinetoscope\nkinetoscope.install()\n", ["{script}", "{folder}"], "kinetoscope.collect.session.profile"),
        ("", ["-m", "kinetoscope", "run", "--install", "-o", "{folder}/all", "{script}", "{folder}"],
         "kinetoscope.collect.session.profile"),
    ],
    ids=["as it is", "install first", "run --install"],
)  # fmt: skip
def test_an_unmodified_trainer_gives_the_same_files(first, command, module_name, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(first + TRAINER, encoding="utf-8")
    words = [word.format(script=script, folder=tmp_path) for word in command]
    done = warm_python.run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == module_name
    files = sorted(tmp_path.glob("worker.*.pt.trace.json"))
    assert len(files) == 2
    for file, steps in zip(files, ([2, 3], [6, 7]), strict=True):
        names = [event["name"] for event in events_of(file)]
        assert [name for name in names if name.startswith("ProfilerStep")] == [
            f"ProfilerStep#{step}" for step in steps
        ]
        assert names.count("batch") == 2
    if "run" in command:
        with kinetoscope.open(tmp_path / "all.ktrace") as trace:
            assert [(row["number"], row["first_step"], row["steps"]) for row in trace.table("cycles").to_pylist()] == [
                (0, 2, 2), (1, 6, 2),
            ]  # fmt: skip


def events_of(file):
    """The slices of a Chrome trace in order of time."""
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])


def test_run_with_install_says_what_it_leaves_to_the_program_and_when_nothing_came(tmp_path):
    script = tmp_path / "idle.py"
    script.write_text("import torch\ntorch.ones(2).add(1)\n", encoding="utf-8")
    command = ["-m", "kinetoscope", "run", "--install"]
    refused = warm_python.run(*command, "--shapes", script)
    assert refused.returncode == 1
    assert "record_shapes (--shapes) cannot be combined with install (--install)" in refused.stderr
    idle = warm_python.run(*command, script, cwd=tmp_path)
    assert idle.returncode == 0
    assert "nothing was recorded: the program finished no recording with torch.profiler" in idle.stderr


@pytest.mark.usefixtures("native")
def test_a_program_that_records_itself_can_be_run_under_a_recording_too(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import torch, kinetoscope\n"
        "with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU]) as prof:\n"
        "    torch.ones(2).add(1)\n"
        "print(prof.trace.info['engine'], sum(event.name == 'aten::add' for event in prof.events()))\n",
        encoding="utf-8",
    )
    command = ["-m", "kinetoscope", "run", "--no-summary", "-o", tmp_path / "outer", script]
    done = warm_python.run(*command)
    assert (done.returncode, done.stdout) == (0, "native 1\n"), done.stderr
    assert "another Kinetoscope session" not in done.stderr
    with kinetoscope.open(tmp_path / "outer.ktrace") as outer:
        assert outer.table("ops").to_pandas().set_index("name").loc["aten::add", "count"] == 1


def test_several_sessions_of_a_program_are_cycles_of_one_trace(tmp_path):
    script = tmp_path / "three.py"
    script.write_text(
        "import torch\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "for size in (1, 2, 3):\n"
        "    with profile(activities=[ProfilerActivity.CPU], record_shapes=True):\n"
        "        torch.ones(size).add(1)\n",
        encoding="utf-8",
    )
    command = [
        "-m",
        "kinetoscope",
        "run",
        "--install",
        "--no-summary",
        "-o",
        tmp_path / "all",
        script,
    ]
    done = warm_python.run(*command)
    assert done.returncode == 0, done.stderr
    with kinetoscope.open(tmp_path / "all.ktrace") as trace:
        rows = [row for row in trace.table("spans").to_pylist() if row["name"] == "aten::add"]
        assert [(row["cycle"], row["shapes"][:4]) for row in rows] == [(0, "[[1]"), (1, "[[2]"), (2, "[[3]")]
