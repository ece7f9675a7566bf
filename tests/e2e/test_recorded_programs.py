"""Real training programs under `kinetoscope run`: what they leave behind, however they end."""

import gzip
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.model.nesting import GARBAGE_COLLECTION
from tests.support import warm_python

pytest.importorskip("torch", reason="these programs train with PyTorch")

TRAINING = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def train(steps):
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} {loss.item():.6f}", flush=True)
"""


@dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str


def python(folder: Path, *words: str, **environment: str) -> Ended:
    """Runs Python in a folder, where it does not matter whether torch is imported by the program or before it."""
    done = warm_python.run(*words, cwd=folder, env={**os.environ, **environment})
    return Ended(done.returncode, done.stdout, done.stderr)


def new_python(folder: Path, *words: str, **environment: str) -> Ended:
    """Runs a new Python in a folder: the program is the first to import torch."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return Ended(done.returncode, done.stdout, done.stderr)


RUN = ("-m", "kinetoscope", "run", "--no-summary")


def profiled(folder: Path, *words: str, **environment: str) -> Ended:
    """Runs `kinetoscope run` without a summary, where torch is there already."""
    return python(folder, *RUN, *words, **environment)


def program(folder: Path, ending: str, name: str = "train.py") -> str:
    """Writes a training program that ends in a certain way, and returns its name."""
    (folder / name).write_text(TRAINING + ending, encoding="utf-8")
    return name


def names(folder: Path) -> list[str]:
    """The files in a folder that no program of a test wrote."""
    return sorted(
        path.name for path in folder.iterdir() if path.suffix != ".py" and path.name != "__pycache__"
    )


@pytest.fixture(scope="module")
def summarised(tmp_path_factory):
    """One run with everything on, and its folder."""
    folder = tmp_path_factory.mktemp("everything")
    name = program(folder, "train(5)\nsys.exit(int(sys.argv[1]))\n")
    plain = python(folder, name, "6")
    words = ["run", "--shapes", "--memory", "--chrome", "-o", "out/all", name, "6"]
    return folder, plain, new_python(folder, "-m", "kinetoscope", *words)


def test_the_program_is_not_disturbed(summarised):
    _, plain, ended = summarised
    assert ended.out == plain.out
    assert ended.code == plain.code == 6


def test_the_files_asked_for_are_there_and_no_others(summarised):
    folder, _, _ = summarised
    assert names(folder / "out") == ["all.json.gz", "all.ktrace"]


def test_the_summary_is_on_standard_error(summarised):
    _, _, ended = summarised
    lines = ended.err.splitlines()
    assert len(lines) <= 40
    text = "\n".join(lines)
    # On a busy machine findings may take the lines of the tables.
    for part in ("train.py 6", "exit code 6", "5 steps", "native engine"):
        assert part in text
    assert re.search(r"^lost +nothing$", text, re.MULTILINE)
    # On a busy machine the words before it are others, so that lines may break elsewhere, or the cost drowns in the noise.
    whole = " ".join(text.split())
    assert re.search(
        r" overhead (.* of step time.*, estimated from [\d,]+ records at |too small to measure \()", whole
    )
    assert "peak" in text
    assert "\x1b" not in text


def test_the_trace_holds_what_was_asked_for(summarised):
    folder, _, _ = summarised
    with kinetoscope.open(folder / "out" / "all.ktrace") as trace:
        assert trace.complete
        assert trace.info["program"]["command"] == ["train.py", "6"]
        assert trace.info["program"]["ended"] == "exit code 6"
        assert trace.table("steps").num_rows == 5
        shown = trace.overview()
        assert {row["path"] for row in shown.modules} >= {"first", "second"}
        assert any(line.file.endswith("train.py") for line in shown.your_lines.lines)
        spans = trace.table("spans").to_pylist()
        assert len(trace.column("allocations", "bytes")) > 0
    linears = [span for span in spans if span["name"] == "aten::linear"]
    assert {span["module"] for span in linears} == {"first", "second"}
    assert json.loads(linears[0]["shapes"])[0] == [4, 8]
    # Stacks begin where the program begins. Python may collect garbage in a thread that the program did not start.
    of_program = [span for span in spans if span["stack"] and span["name"] != GARBAGE_COLLECTION]
    roots = {span["stack"].split(";")[0] for span in of_program}
    assert roots == {f"{folder / 'train.py'}(24): <module>"}


def test_the_chrome_trace_is_strict_json(summarised):
    folder, _, _ = summarised
    text = gzip.decompress((folder / "out" / "all.json.gz").read_bytes())

    def refuse(name: str) -> None:
        raise ValueError(name)

    events = json.loads(text, parse_constant=refuse)["traceEvents"]
    assert sum(event.get("name") == "aten::linear" for event in events) == 10


def test_the_trace_answers_the_other_commands(summarised):
    folder, _, _ = summarised
    for words in (["info"], ["table"], ["sql"]):
        more = ["select count(*) as spans from spans"] if words == ["sql"] else []
        shown = python(folder, "-m", "kinetoscope", *words, "out/all.ktrace", *more)
        assert shown.code == 0, shown.err
        assert shown.err == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_a_recording_that_opens(tmp_path, number):
    name = program(
        tmp_path, f"train(4)\nimport os\nos.kill(os.getpid(), {int(number)})\nimport signal\nsignal.pause()\n"
    )
    ended = profiled(tmp_path, name)
    assert ended.code == -number
    assert ended.out.count("step") == 4
    assert names(tmp_path) == ["train.recording"]
    shown = python(tmp_path, "-m", "kinetoscope", "info", "train.recording")
    assert shown.code == 0, shown.err
    assert "the recording was not stopped" in shown.out
    assert "python train.py" in shown.out
    with kinetoscope.open(tmp_path / "train.recording") as trace:
        count = trace.table("spans").column("name").to_pylist().count("aten::linear")
    assert count == 8
    # The next run does not touch what the killed one left.
    (tmp_path / name).write_text(TRAINING + "train(1)\n")
    assert profiled(tmp_path, name).code == 0
    assert names(tmp_path) == ["train-2.ktrace", "train.recording"]


def test_an_interrupted_program_leaves_its_trace(tmp_path):
    ending = "train(2)\nimport os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(10**9): pass\n"
    name = program(tmp_path, ending)
    plain, ended = python(tmp_path, name), profiled(tmp_path, name)
    # What a shell shows as 130.
    assert ended.code == plain.code == -signal.SIGINT
    assert ended == plain
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.complete
        assert trace.info["program"]["ended"] == "interrupted"


def test_an_exception_is_shown_as_always_and_the_trace_is_kept(tmp_path):
    ending = "def fail():\n    torch.ones(2, 3) @ torch.ones(2, 3)\ntrain(1)\nfail()\n"
    name = program(tmp_path, ending)
    plain, ended = python(tmp_path, name), profiled(tmp_path, name)
    assert ended == plain
    assert ended.code == 1
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.info["program"]["ended"] == "ended by RuntimeError"


def test_leaving_without_goodbye_leaves_the_recording(tmp_path):
    ended = profiled(tmp_path, program(tmp_path, "train(2)\nimport os\nos._exit(5)\n"))
    assert ended.code == 5
    assert names(tmp_path) == ["train.recording"]
    assert python(tmp_path, "-m", "kinetoscope", "info", "train.recording").code == 0


def test_workers_run_as_they_would_and_only_spawned_ones_are_recorded(tmp_path):
    ending = """
from torch.utils.data import DataLoader, TensorDataset

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.full((8,), float(index)) * 2

if __name__ == "__main__":
    for context, workers in (("fork", 1), ("spawn", 1)):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, multiprocessing_context=context)
        print(context, sum(batch.sum().item() for batch in loader))
    train(2)
"""
    name = program(tmp_path, ending)
    plain, ended = python(tmp_path, name), profiled(tmp_path, name)
    assert ended == plain
    assert plain.code == 0
    assert names(tmp_path) == ["train.ktrace"]
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.complete
        # Each worker makes all 16 numbers.
        assert trace.table("spans").column("name").to_pylist().count("aten::full") == 16


def test_threads_and_exit_handlers_are_recorded_too(tmp_path):
    ending = """
import atexit, threading
atexit.register(lambda: torch.erf(torch.ones(3)))
def late():
    torch.main_is_done.wait()
    torch.digamma(torch.ones(3))
torch.main_is_done = threading.Event()
threading.Thread(target=late).start()
torch.main_is_done.set()
"""
    assert profiled(tmp_path, program(tmp_path, ending)).code == 0
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        seen = trace.table("spans").column("name").to_pylist()
    assert "aten::digamma" in seen
    assert "aten::erf" in seen


def test_the_environment_of_torch_is_still_the_programs_to_set(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
    )
    ended = new_python(tmp_path, *RUN, "train.py", OMP_NUM_THREADS="2")
    assert ended.out == "1\n"


def test_a_module_is_profiled_wherever_it_imports_torch(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import torch\n")
    program(package, "if __name__ == '__main__':\n    train(int(sys.argv[1]))\n", "tool.py")
    plain = python(tmp_path, "-m", "package.tool", "2")
    ended = new_python(tmp_path, *RUN, "-o", "mine.ktrace", "-m", "package.tool", "2")
    assert ended == plain
    with kinetoscope.open(tmp_path / "mine.ktrace") as trace:
        assert trace.table("steps").num_rows == 2
        assert trace.info["program"]["command"] == ["-m", "package.tool", "2"]


def test_some_steps_only(tmp_path):
    name = program(tmp_path, "train(6)\n")
    assert profiled(tmp_path, "--steps", "2:5", name).code == 0
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.table("steps")["number"].to_pylist() == [2, 3, 4]
        assert trace.table("spans").column("name").to_pylist().count("aten::linear") == 6
    ended = profiled(tmp_path, "--steps", "9:", name)
    assert ended.code == 0
    assert ended.err == (
        "kinetoscope: nothing was recorded: the program's optimizer made 6 steps, and recording was to begin after 9.\n"
    )


def test_a_ring_keeps_the_newest_and_says_what_it_dropped(tmp_path):
    ending = "x = torch.ones(1)\nfor _ in range(60_000):\n    x.abs()\nx.erf()\n"
    ended = python(tmp_path, "-m", "kinetoscope", "run", "--ring", "1M", program(tmp_path, ending))
    assert ended.code == 0
    assert "oldest spans overwritten" in ended.err
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        seen = trace.table("spans").column("name").to_pylist()
        assert not trace.complete
    assert seen[-1] == "aten::erf"
    assert 1000 < len(seen) < 60_000


def test_torchs_collector_can_be_chosen(tmp_path):
    ended = python(
        tmp_path,
        "-m",
        "kinetoscope",
        "run",
        "--engine",
        "kineto",
        "--no-stack",
        program(tmp_path, "train(2)\n"),
    )
    assert ended.code == 0
    assert "kineto engine" in ended.err
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.table("spans").column("name").to_pylist().count("aten::linear") == 4


@pytest.mark.parametrize(
    ("words", "stacks", "modules"),
    [
        ((), True, True),
        (("--no-stack",), False, True),
        (("--no-modules",), True, False),
        (("--no-modules", "--module-spans"), True, True),
        (("--no-stack", "--no-modules"), False, False),
        (("--no-stack", "--no-modules", "--memory", "--shapes", "--python-calls"), False, False),
    ],
    ids=["default", "no stacks", "no modules", "modules by their spans", "neither", "neither, all else"],
)
def test_stacks_and_modules_are_recorded_unless_they_are_turned_off(tmp_path, words, stacks, modules):
    ended = profiled(tmp_path, "--no-samples", *words, program(tmp_path, "train(2)\n"))
    assert ended.code == 0, ended.err
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.table("spans").column("name").to_pylist().count("aten::linear") == 4
        for stored, column, shown, recorded in (
            ("stacks", "stack", "lines", stacks),
            ("modules", "module", "modules", modules),
        ):
            assert (len(trace.columns(stored)) > 0) == recorded
            assert (trace.column("spans", column) >= 0).any() == recorded
            assert (trace.table(shown).num_rows > 0) == recorded


def test_files_go_where_the_command_was_typed_and_ranks_apart(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    name = program(tmp_path, "import os\nos.chdir('elsewhere')\ntrain(1)\n")
    assert profiled(tmp_path, name, RANK="3").code == 0
    assert names(tmp_path) == ["elsewhere", "train-rank3.ktrace"]
    assert names(tmp_path / "elsewhere") == []


def test_a_place_that_cannot_be_written_is_an_error_before_the_program_runs(tmp_path):
    name = program(tmp_path, "train(1)\n")
    (tmp_path / "file").write_text("")
    ended = profiled(tmp_path, "-o", "file/x", name)
    assert ended.code == 1
    assert ended.out == ""
    assert ended.err.startswith("kinetoscope: error: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_a_session_inside_records_beside_the_run(tmp_path, engine):
    ending = f"""
import kinetoscope
with kinetoscope.profile(engine={engine!r}, record_shapes=True) as prof:
    train(2)
train(1)
print(sum(event.name == "aten::linear" for event in prof.events()))
"""
    ended = profiled(tmp_path, "--no-deep-steps", program(tmp_path, ending))
    assert ended.code == 0, ended.err
    assert "another Kinetoscope session" not in ended.err
    assert ended.out.endswith("\n4\n")
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.table("spans").column("name").to_pylist().count("aten::linear") == 6
        assert set(trace.table("spans").column("shapes").to_pylist()) == {None}


def test_torchs_profiler_may_run_inside(tmp_path):
    ending = """
with torch.profiler.profile() as prof:
    train(2)
print(sum(event.name == "aten::linear" for event in prof.events()))
"""
    ended = profiled(tmp_path, program(tmp_path, ending))
    assert ended.code == 0, ended.err
    assert ended.out.endswith("\n4\n")
    with kinetoscope.open(tmp_path / "train.ktrace") as trace:
        assert trace.table("spans").column("name").to_pylist().count("aten::linear") == 4


def test_a_program_that_runs_out_of_memory_leaves_a_report_on_who_held_it(tmp_path):
    ending = "held = Net()\nprint('before', flush=True)\ntorch.empty(1 << 50)\n"
    plain = python(tmp_path, program(tmp_path, ending))
    ended = profiled(tmp_path, "--memory", "-o", "full", "train.py")
    assert ended.code == plain.code == 1
    assert ended.out == plain.out
    assert names(tmp_path) == ["full.ktrace", "full.oom.memory.html", "full.oom.txt"]
    assert "kinetoscope: " in ended.err
    assert str(tmp_path / "full.oom.txt") in ended.err
    assert "train.py(26)" in (tmp_path / "full.oom.txt").read_text()


PROGRESS = """
import threading
(line,) = [thread for thread in threading.enumerate() if thread.name == "kinetoscope-progress"]
line.join(0.8)
print(line.is_alive())
"""


def test_the_progress_line_continues_where_torch_was_imported_before(tmp_path):
    (tmp_path / "wait.py").write_text(PROGRESS)
    terminal, standard_error = pty.openpty()
    try:
        start = "import torch; from kinetoscope.cli import main; main(['run', '--no-summary', 'wait.py'])"
        done = warm_python.run("-c", start, cwd=tmp_path, stderr=standard_error)
        shown = os.read(terminal, 10_000).decode()
    finally:
        os.close(terminal)
        os.close(standard_error)
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert shown.startswith("kinetoscope: recording to wait.recording (native engine)")


@pytest.mark.parametrize("option", [(), ("--children",)])
def test_in_a_folder_that_cannot_be_written_to_the_recording_goes_to_another(tmp_path, option):
    name = program(tmp_path, "train(2)\n")
    # Nobody can create a file in this one, not even root.
    ended = python(Path("/proc"), "-m", "kinetoscope", "run", *option, str(tmp_path / name))
    assert ended.code == 0
    assert ended.out.count("\n") == 2
    found = re.match(
        r"kinetoscope: the folder '/proc' cannot be written to \([\w ]+\): recording to (\S+); -o PREFIX chooses another place\.\n",
        ended.err,
    )
    assert found is not None, ended.err
    assert "Traceback" not in ended.err
    with kinetoscope.open(Path(found[1], "train.ktrace")) as trace:
        assert trace.table("steps").num_rows == 2
    assert [path.name for path in Path(found[1]).iterdir()] == ["train.ktrace"]
    shutil.rmtree(found[1])


@pytest.mark.parametrize("option", [(), ("--children",)])
def test_an_output_that_cannot_be_written_is_one_line_before_the_program_starts(tmp_path, option):
    name = program(tmp_path, "train(2)\n")
    ended = profiled(tmp_path, *option, "-o", "/proc/first", name)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("kinetoscope: error: the folder '/proc' cannot be written to (")
    assert ended.err.count("\n") == 1


def test_a_program_that_has_made_steps_goes_on_when_its_recording_cannot_start(tmp_path):
    name = program(tmp_path, "import shutil\nshutil.rmtree('out')\ntrain(4)\n")
    ended = python(tmp_path, "-m", "kinetoscope", "run", "-o", "out/first", "--steps", "2:3", name)
    assert ended.code == 0
    assert ended.out.count("\n") == 4
    assert "The program goes on without a recording." in ended.err
    assert ended.err.endswith("kinetoscope: nothing was recorded: the recording could not be started.\n")


def test_processes_that_are_not_recorded_are_mentioned_with_the_option(tmp_path):
    name = program(tmp_path, "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\ntrain(2)\n")
    # A child of a test is too small to be mentioned.
    ours = (
        "import kinetoscope.launcher.unrecorded as limits\nlimits.LEAST_CPU_S = limits.LEAST_SHARE = 0.0\n"
        "from kinetoscope.cli import main\nmain(['run', *sys.argv[1:]])\n"
    )
    ended = python(tmp_path, "-c", f"import sys\n{ours}", name)
    assert ended.code == 0
    told = " ".join(ended.err.split())
    assert "and are not in the trace: `kinetoscope run --children` records those that use PyTorch" in told
    with_children = python(tmp_path, "-c", f"import sys\n{ours}", "--children", name)
    assert "not in the trace" not in with_children.err
