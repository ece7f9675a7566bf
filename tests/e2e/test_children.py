"""Real processes of every kind under `kinetoscope run --children`: what is in the trace, and that nothing else differs."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from kinetoscope.ledger.parts import PARTS
from tests.support import warm_python

pytest.importorskip("torch", reason="these programs compute with PyTorch")

# Each child runs an operator that no other one runs.
FAMILY = """
import json, multiprocessing as mp, os, signal, subprocess, sys

if __name__ == "__main__":
    # A fork from before there is torch, which imports it itself.
    early = os.fork()

import torch

def compute(name, times=3):
    for _ in range(times):
        getattr(torch, name)(torch.ones(4))

def leave_at_once(name):
    compute(name)
    os._exit(7)

def wait_to_be_killed(name, ready):
    compute(name)
    ready.send(1)
    signal.pause()

def with_a_child(name, of_child):
    compute(name)
    inner = mp.get_context("fork").Process(target=compute, args=(of_child,), name="inner")
    inner.start()
    inner.join()

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((3,), float(index)).asinh()

def python(code, *words, **options):
    done = subprocess.run([sys.executable, "-c", code, *words], text=True, stdout=subprocess.PIPE, check=False, **options)
    print(done.stdout.strip(), done.returncode)

def end(child):
    child.join()
    print(child.name, child.exitcode)

if __name__ == "__main__":
    if early == 0:
        compute("asin")
        os._exit(0)
    before, original = dict(os.environ), json.loads(os.environ["ORIGINAL"])
    compute("sin")
    fork, spawn, server = map(mp.get_context, ("fork", "spawn", "forkserver"))
    server.set_forkserver_preload(["torch"])
    children = [
        fork.Process(target=compute, args=("cos",), name="forked"),
        spawn.Process(target=with_a_child, args=("tan", "sinh"), name="spawned"),
        server.Process(target=compute, args=("cosh",), name="served"),
        fork.Process(target=leave_at_once, args=("tanh",), name="leaving"),
    ]
    for child in children:
        child.start()
    for child in children:
        end(child)
    for name, number in (("acos", signal.SIGTERM), ("atan", signal.SIGKILL)):
        here, there = fork.Pipe()
        child = fork.Process(target=wait_to_be_killed, args=(name, there), name=f"killed by {int(number)}")
        child.start()
        here.recv()
        os.kill(child.pid, number)
        end(child)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    print(sum(batch.shape[0] for batch in loader), flush=True)  # or a fork below would print it, too
    for become in (False, True):
        child = os.fork()
        if child == 0:
            compute("erf" if become else "erfc")
            if become:
                os.execv(sys.executable, [sys.executable, "-c", "import os; os.abort()"])
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    # A Python of its own, with an environment of its own, that reads what we were given to read.
    handed_on = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "KINETOSCOPE_CHILDREN")}
    python("import os, torch; torch.ones(2).expm1(); print(input(), sorted(os.environ))", env={"MARK": "1", **handed_on})
    # Nobody can follow this one.
    python("import torch; torch.ones(2).exp2()", env={"PYTHONPATH": os.environ["PYTHONPATH"]})
    # Others do not use torch.
    python("import os, sys; print(os.environ['PYTHONPATH'] == sys.argv[1], 'kinetoscope' in sys.modules)", os.environ["PYTHONPATH"])
    print(os.environ == before, sorted(set(os.environ) - set(original)))
    print(os.waitstatus_to_exitcode(os.waitpid(early, 0)[1]))
    late = fork.Process(target=compute, args=("log1p",), name="late")
    late.start()
    print("main ends", flush=True)
"""


@dataclass
class Ended:
    """How a run ended, and what it left."""

    code: int
    out: str
    err: str
    files: list[str] = field(default_factory=list)


def left_in(folder: Path) -> list[str]:
    """The files in a folder that are no programs."""
    files = sorted(path.name for path in folder.iterdir() if path.suffix not in (".py", "") or path.is_dir())
    return [name for name in files if name != "__pycache__"]


def run(
    folder: Path, program: str, *words: str, name: str = "family.py", text: str = "", children: bool = True
) -> Ended:
    """Runs a program that is put into a folder, under `kinetoscope run --children` with some words."""
    (folder / name).write_text(program, encoding="utf-8")
    source = str(Path(kinetoscope.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "COLUMNS": "100"}
    # Of a program whose output is not buffered some mistakes with forks are not seen.
    environment.pop("PYTHONUNBUFFERED", None)
    environment["ORIGINAL"] = json.dumps([*environment, "ORIGINAL"])
    done = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "run", *(["--children"] if children else []), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        input=text,
        check=False,
        env=environment,
    )
    return Ended(done.returncode, done.stdout, done.stderr, left_in(folder))


def run_warm(folder: Path, program: str, *words: str, name: str) -> Ended:
    """The same where the program does not have to be the first to import torch."""
    (folder / name).write_text(program, encoding="utf-8")
    environment = {**os.environ, "COLUMNS": "100"}
    done = warm_python.run("-m", "kinetoscope", "run", "--children", *words, cwd=folder, env=environment)
    return Ended(done.returncode, done.stdout, done.stderr, left_in(folder))


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """The program with children of every kind, recorded, and its trace."""
    folder = tmp_path_factory.mktemp("family")
    ended = run(folder, FAMILY, "family.py", text="a line\n")
    assert "Traceback" not in ended.err
    with kinetoscope.open(folder / "family.ktrace") as trace:
        yield ended, trace


def test_the_program_and_its_children_end_as_they_would(family):
    ended, _ = family
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "forked 0",
        "spawned 0",
        "served 0",
        "leaving 7",
        f"killed by 15 {-signal.SIGTERM}",
        f"killed by 9 {-signal.SIGKILL}",
        "8",
        "3",
        str(-signal.SIGABRT),
        "a line ['KINETOSCOPE_CHILDREN', 'LC_CTYPE', 'MARK', 'PATH', 'PYTHONPATH'] 0",
        " 0",
        "True False 0",
        "True ['KINETOSCOPE_CHILDREN']",
        "0",
        "main ends",
    ]


def test_nothing_is_left_but_the_trace(family):
    ended, _ = family
    assert ended.files == ["family.ktrace"]


def operators(trace) -> dict[str, list[str]]:
    """The operators of each process, by the name of the process."""
    named: dict[int, str] = {}
    for row in trace.table("processes").to_pylist():
        named[row["process"]] = row["name"]
    found: dict[str, list[str]] = {}
    for span in trace.table("spans").to_pylist():
        found.setdefault(named[span["process"]], []).append(span["name"])
    return found


@pytest.mark.parametrize(
    ("process", "operator", "count"),
    [
        ("family.py", "aten::sin", 3),
        ("forked", "aten::cos", 3),
        ("spawned", "aten::tan", 3),
        ("inner", "aten::sinh", 3),
        ("served", "aten::cosh", 3),
        ("leaving", "aten::tanh", 3),
        ("killed by 15", "aten::acos", 3),
        ("killed by 9", "aten::atan", 3),
        ("DataLoader worker 0", "aten::asinh", 4),
        ("DataLoader worker 1", "aten::asinh", 4),
        ("late", "aten::log1p", 3),
    ],
)
def test_each_child_has_what_it_computed_and_nothing_else(family, process, operator, count):
    _, trace = family
    found = operators(trace)
    assert found[process].count(operator) == count
    others = [name for name, spans in found.items() if operator in spans and name != process]
    assert all(name.startswith("DataLoader") for name in others)


def tree(trace) -> list[tuple[str, str]]:
    """The processes and the nearest of them that each descends from, by name."""
    entries = trace.info["processes"]
    named = {entry["process"]: entry["name"] for entry in entries}
    return [(entry["name"], named.get(entry.get("recorded_parent"), "")) for entry in entries]


def test_every_process_is_under_the_one_that_started_it(family):
    _, trace = family
    assert sorted(tree(trace)) == sorted(
        [
            ("family.py", ""),
            *((name, "family.py") for name in ("forked", "spawned", "served", "leaving", "late")),
            ("inner", "spawned"),
            *((f"killed by {number}", "family.py") for number in (15, 9)),
            *((f"DataLoader worker {number}", "family.py") for number in (0, 1)),
            # Forks that nobody gave a name, and a Python with a program on its command line.
            *[("family.py", "family.py")] * 3,
            ("-c", "family.py"),
        ]
    )


def test_it_is_known_how_they_ended_and_whose_recording_was_cut(family):
    _, trace = family
    ended = {entry["name"]: entry.get("ended") for entry in trace.info["processes"]}
    assert ended["leaving"] == "exit code 7"
    assert ended["forked"] == ended["inner"] == ended["late"] == "exit code 0"
    assert ended["killed by 9"] == ended["killed by 15"] == "killed, crashed or became another program"
    # The two that were killed and the one that became another program, and the one that could not be followed.
    codes = ["recording_not_stopped"] * 3 + ["processes_not_followed"]
    assert [loss["code"] for loss in trace.losses] == codes


def test_they_are_on_one_clock(family):
    _, trace = family
    rows = {row["name"]: row for row in trace.table("processes").to_pylist()}
    assert {row["clock"] for row in rows.values()} == {"monotonic"}
    assert min(row["error_ns"] for row in rows.values()) >= 0
    names = trace.column("processes", "name")
    starts = trace.column("processes", "start_ns").tolist()
    begun = dict(zip(names, starts, strict=True))
    # The program waited for each before it started the next.
    order = ["forked", "killed by 15", "killed by 9", "DataLoader worker 0", "late"]
    assert sorted(order, key=begun.__getitem__) == order
    spans = trace.table("spans").select(["process", "start_ns", "name"]).to_pylist()
    inner, spawned = rows["inner"]["process"], rows["spawned"]["process"]
    last = max(span["start_ns"] for span in spans if span["process"] == spawned)
    assert all(span["start_ns"] > last for span in spans if span["process"] == inner)


def test_stacks_of_a_fork_begin_with_the_program(family):
    _, trace = family
    stacks = [
        span["stack"]
        for span in trace.table("spans").to_pylist()
        if span["name"] in ("aten::cos", "aten::asinh")
    ]
    assert len(stacks) == 11
    assert all("/family.py(" in stack.split(";")[0] for stack in stacks)


def test_the_summary_shows_the_tree(family):
    ended, trace = family
    assert len(ended.err.splitlines()) <= 40
    assert "of 15 processes" in ended.err
    # How many fit into so many lines depends on what else there is to say; where it is one, that is the busiest, and on a busy machine it may be none.
    shown = int(*re.findall(r"^processes \((\d) of 15\)", ended.err, re.MULTILINE))
    rows = trace.overview().busiest_processes(shown)
    assert shown <= 1 or rows[0].name == "family.py"
    assert all(f"{row.name} ({row.pid})" in ended.err for row in rows)


KILLED = """
import multiprocessing as mp, os, signal, subprocess, sys
import torch

def compute(ready):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    os.environ["RANK"] = "3"
    torch.optim.SGD([parameter], lr=0.1).step()
    ready.send(1)
    signal.pause()

if __name__ == "__main__":
    torch.ones(3).sin()
    here, there = mp.Pipe()
    child = mp.get_context("fork").Process(target=compute, args=(there,), name="forked")
    child.start()
    here.recv()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    subprocess.run([sys.executable, "-c", "import sys, torch; torch.ones(3).cos(); sys.exit(3)"])
    print(os.getpid(), child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_a_killed_program_the_recordings_know_all_about_its_children(tmp_path):
    killed = run_warm(tmp_path, KILLED, "killed.py", name="killed.py")
    program, forked = map(int, killed.out.split())
    assert killed.files == ["killed.children", "killed.recording"]
    paths = [tmp_path / "killed.recording", *(tmp_path / "killed.children").glob("*.recording")]
    trace = merge_processes([kinetoscope.open(path) for path in paths])
    entries = {entry["process"]: entry for entry in trace.info["processes"]}
    assert len(entries) == 3
    child = entries.pop(forked)
    assert "ended" not in child
    assert (child["process_name"], child["rank"], child["began"]) == ("forked", 3, "fork")
    assert child["command"][-1] == "killed.py"
    assert entries.pop(program)["program"]["command"] == ["killed.py"]
    (other,) = entries.values()
    assert (other["began"], other["ended"]) == ("exec", "ended by itself")
    assert child["ancestors"][0] == other["ancestors"][0] == program


RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(8, 4)
for number in range(3):
    # An optimizer of torch imports as much again as torch itself.
    with torch.profiler.record_function(f"ProfilerStep#{number}"):
        net(torch.ones(2, 8)).sum().backward()
        dist.all_reduce(net.weight.grad)
dist.barrier()
dist.destroy_process_group()
"""


def test_the_ranks_of_torchrun_are_in_one_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    launch = ("torchrun", "--standalone", "--nproc-per-node", "2", "ranks.py")
    ended = run(tmp_path, RANKS, "--shapes", "-o", "out/ranks", *launch, name="ranks.py", children=False)
    assert ended.code == 0, ended.err
    assert os.listdir(tmp_path / "out") == ["ranks.ktrace"]
    assert "3 steps" in ended.err
    assert "· ranks.py, rank 0" in ended.err
    with kinetoscope.open(tmp_path / "out" / "ranks.ktrace") as trace:
        assert [name for name, _ in tree(trace)] == ["torchrun", "ranks.py", "ranks.py"]
        assert trace.column("processes", "rank").tolist() == [-1, 0, 1]
        assert trace.complete
        steps = trace.table("steps").to_pylist()
        assert sorted((step["rank"], step["number"]) for step in steps) == [
            (rank, number) for rank in (0, 1) for number in range(3)
        ]
        collectives = trace.table("collectives").to_pylist()
    assert len(collectives) > 0


LAUNCHER = """
import os, sys
status = os.system(f"{sys.executable} -c 'import torch; torch.ones(3).cos()'")
print(status, flush=True)
os._exit(6)
"""


def test_a_program_without_torch_has_a_trace_of_its_children(tmp_path):
    ended = run(tmp_path, LAUNCHER, "--chrome", "launcher.py", name="launcher.py")
    assert (ended.code, ended.out) == (6, "0\n")
    assert ended.files == ["launcher.json.gz", "launcher.ktrace"]
    assert "exit code 6" in ended.err
    with kinetoscope.open(tmp_path / "launcher.ktrace") as trace:
        assert trace.table("spans").column("name").to_pylist().count("aten::cos") == 1
        assert trace.info["program"]["command"] == ["launcher.py"]


UNFOLLOWED = """
import subprocess, sys
subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
"""


def test_what_could_not_be_followed_is_said_where_nothing_was_recorded(tmp_path):
    ended = run(tmp_path, UNFOLLOWED, "unfollowed.py", name="unfollowed.py")
    assert (ended.code, ended.out, ended.files) == (0, "", [])
    assert ended.err == (
        "kinetoscope: nothing was recorded: the program never imported torch; Python processes started without "
        "the start-up hook (1): They were started with -I, which makes Python ignore the hook: if they used PyTorch, that is "
        "not recorded.\n"
    )


STARVED = """
import torch

STEPS = 6

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS
    def __getitem__(self, index):
        return torch.full((8,), float(index))

def slow_collate(items):
    made = torch.ones(200, 200)
    for _ in range(30):
        made = (made @ made).tanh()
    return torch.stack(items)

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=1, num_workers=1, collate_fn=slow_collate):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


def test_a_loop_that_waits_for_a_worker_is_not_busy_with_what_the_worker_does(tmp_path):
    ended = run_warm(tmp_path, STARVED, "-o", "starved", "starved.py", name="starved.py")
    assert ended.code == 0, ended.err
    with kinetoscope.open(tmp_path / "starved.ktrace") as trace:
        loop, worker = trace.table("processes")["process"].to_pylist()
        spans = trace.table("spans").to_pylist()
        rows = trace.table("breakdown").to_pylist()
        steps = {row["start_ns"]: row for row in trace.table("steps").to_pylist()}
        loading = "enumerate(DataLoader)#"
        for row in rows:
            assert sum(row[name] for name in PARTS) == row["duration_ns"]
        of_loop = [row for row in rows if row["process"] == loop]
        assert len(of_loop) == len(steps) == 6
        for row in of_loop:
            own = [
                span
                for span in spans
                if span["process"] == loop
                and span["kind"] in ("operator", "backward")
                and span["start_ns"] < row["start_ns"] + row["duration_ns"]
                and span["start_ns"] + span["duration_ns"] > row["start_ns"]
            ]
            # As below: another program may have had the processor during all of a short step's operators.
            assert row["compute_ns"] + row["processor_wait_ns"] > 0
            assert row["compute_ns"] <= sum(span["self_ns"] for span in own)
            waited = steps[row["start_ns"]]["data_wait_ns"]
            # The wait that ends a step by beginning in it is cut there, and nothing else of it is missing.
            ends = row["start_ns"] + row["duration_ns"]
            cut = sum(
                span["start_ns"] + span["duration_ns"] - ends
                for span in spans
                if span["name"].startswith(loading)
                and span["start_ns"] < ends < span["start_ns"] + span["duration_ns"]
            )
            assert row["data_wait_ns"] == waited - cut
        (of_worker,) = [row for row in rows if row["process"] == worker]
        assert of_worker["step"] is None
        computed = [span for span in spans if span["process"] == worker and span["name"] == "aten::tanh"]
        # Where other programs had its processor in the middle of an operator, that is a part of its own.
        ran_ns = of_worker["compute_ns"] + of_worker["processor_wait_ns"]
        assert ran_ns >= sum(span["self_ns"] for span in computed) > 0
        # The same numbers are those of the summary, which may have no room for the tables: other programs have their lines in it, too.
        host, elsewhere = trace.overview().host, trace.overview().elsewhere
        lines_elsewhere = trace.overview().lines_elsewhere
    counted = [row for row in of_loop if not row["start_up"]]
    whole = sum(row["duration_ns"] for row in counted)
    share = 100 * sum(row["data_wait_ns"] for row in counted) / whole
    assert f"waiting for data {share:.1f} %" in " ".join(ended.err.split())
    # What the worker computed is told of the worker only.
    assert "aten::tanh" not in {row["name"] for row in host.operators}
    assert elsewhere.name == "DataLoader worker 0"
    assert "aten::tanh" in {row["name"] for row in elsewhere.operators}
    assert lines_elsewhere


DAEMONS = """
import torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((8,), float(index)).sin()

if __name__ == "__main__":
    # The workers are alive when the program ends, and `multiprocessing` terminates them.
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, persistent_workers=True)
    print(sum(len(batch) for batch in loader))
"""


@pytest.mark.parametrize("start", [run, run_warm], ids=["program-imports-torch", "torch-imported-before"])
def test_workers_that_end_with_the_program_have_lost_nothing(tmp_path, start):
    ended = start(tmp_path, DAEMONS, "-o", "daemons", "daemons.py", name="daemons.py")
    assert (ended.code, ended.out) == (0, "4\n"), ended.err
    with kinetoscope.open(tmp_path / "daemons.ktrace") as trace:
        assert [entry.get("ended") for entry in trace.info["processes"][1:]] == [
            "terminated by its parent"
        ] * 2
        assert trace.table("losses").to_pylist() == []
        assert trace.info["complete"] is True
    assert ended.files == ["daemons.ktrace"]


# Under `kinetoscope run` alone. Each process runs an operator that no other one runs.
SPAWNING = """
import multiprocessing as mp, os, signal, subprocess, sys
import torch

def compute(name):
    for _ in range(3):
        getattr(torch, name)(torch.ones(4))

def compute_and_wait(name, ready):
    compute(name)
    ready.send(1)
    signal.pause()

def spawn_in_turn(name):
    compute(name)
    inner = mp.get_context("spawn").Process(target=compute, args=("sinh",), name="inner")
    inner.start()
    inner.join()

if __name__ == "__main__":
    spawn, fork = mp.get_context("spawn"), mp.get_context("fork")
    children = [
        spawn.Process(target=compute, args=("tan",), name="spawned"),
        spawn.Process(target=spawn_in_turn, args=("cosh",), name="parent"),
        fork.Process(target=compute, args=("cos",), name="forked"),
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
        print(child.name, child.exitcode)
    here, there = fork.Pipe()
    daemon = spawn.Process(target=compute_and_wait, args=("atan", there), name="daemon", daemon=True)
    daemon.start()
    here.recv()
    subprocess.run([sys.executable, "-c", "import os; print(sorted(set(os.environ)))"], check=True)
    print(sorted(set(os.environ)), flush=True)
    spawn.Process(target=compute, args=("log1p",), name="late").start()
"""


def test_without_the_option_only_spawned_processes_are_recorded(tmp_path):
    ended = run(tmp_path, SPAWNING, "spawning.py", name="spawning.py", children=False)
    *codes, environment_of_another, environment = ended.out.splitlines()
    assert (ended.code, codes) == (0, ["spawned 0", "parent 0", "forked 0"])
    assert environment == environment_of_another
    assert "KINETOSCOPE_CHILDREN" not in environment
    assert ended.files == ["spawning.ktrace"]
    with kinetoscope.open(tmp_path / "spawning.ktrace") as trace:
        # The program itself ran no operator, and may have collected garbage.
        computed = {"spawning.py": set()} | {name: set(names) for name, names in operators(trace).items()}
        ended_by = {entry["name"]: entry.get("ended") for entry in trace.info["processes"]}
        assert trace.table("losses").to_pylist() == []
    of_functions = {"tan", "cosh", "sinh", "cos", "atan", "log1p"}
    assert {
        name: {f"aten::{function}" for function in of_functions} & names for name, names in computed.items()
    } == {
        "spawning.py": set(),
        "spawned": {"aten::tan"},
        "parent": {"aten::cosh"},
        "daemon": {"aten::atan"},
        "late": {"aten::log1p"},
    }
    assert (ended_by["daemon"], ended_by["late"]) == ("terminated by its parent", "ended by itself")


SPAWNING_ONE = """
import multiprocessing as mp, torch

if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=torch.ones, args=(4,))
    child.start()
    child.join()
    print(child.exitcode)
"""


def test_a_spawned_process_runs_where_its_recording_has_no_folder(tmp_path):
    (tmp_path / "run.children").write_text("of somebody else", encoding="utf-8")
    ended = run(tmp_path, SPAWNING_ONE, "-o", "run", "spawning.py", name="spawning.py", children=False)
    assert (ended.code, ended.out) == (0, "0\n")
    with kinetoscope.open(tmp_path / "run.ktrace") as trace:
        losses = [(loss["code"], loss["count"]) for loss in trace.table("losses").to_pylist()]
    assert losses == [("processes_not_recorded", 1)]
    assert (tmp_path / "run.children").read_text(encoding="utf-8") == "of somebody else"
