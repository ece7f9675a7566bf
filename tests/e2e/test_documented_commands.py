"""The command lines of the documentation, run as they stand there, beside the files that they name."""

import pickle
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import SCRIPTS as BENCHMARKS
from kinetoscope import cli
from tests.support import warm_python
from tests.support.nsight_file import NsightFile
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

pytest.importorskip("torch", reason="some of the commands run a program that trains")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MS = 1_000_000
BLOCK = re.compile(r"^`{3,}(\S*)[^\n]*\n(.*?)^`{3,}$", re.MULTILINE | re.DOTALL)
SHELLS = ("console", "sh", "bash", "")
INLINE = re.compile(r"`([^`]+)`")
# Commands that are not run here, by how they begin, and why. All others are.
NOT_RUN = {
    "ab ": "runs a program 40 times: tests/cli/test_ab.py",
    "attach ": "needs a program with a Python that has sys.remote_exec: tests/cli/test_attach.py",
    "capture ": "needs a job that is left on: tests/cli/test_capture.py",
    "status ": "needs a job that is left on: tests/flight/control",
    "run accelerate launch": "needs accelerate, and starts a new Python for each rank: tests/e2e/test_children.py",
    "run torchrun": "starts a new Python for each rank: tests/e2e/test_children.py",
    "summarize s3://": "needs a store and a cluster: tests/summaries",
    "view ": "serves until it is interrupted: tests/cli/test_view.py",
}
# What a command may say by its exit code beside success.
EXIT_CODES = {"check": {1, 2}, "last": {1}}
TRAIN = """
import sys, torch

net = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(35):
    net(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KILLED = """
import os, signal, torch, kinetoscope

prof = kinetoscope.profile(path="train.recording")
prof.start()
torch.ones(8, 8) @ torch.ones(8, 8)
os.kill(os.getpid(), signal.SIGKILL)
"""


def calls_in(text: str) -> list[list[str]]:
    """The words of the calls of kinetoscope in a block of a page, without comments and redirections."""
    calls = []
    prompt = any(line.startswith("$ ") for line in text.splitlines())
    for line in text.replace("\\\n", " ").splitlines():
        if prompt and not line.startswith("$ "):
            continue
        if line.removeprefix("$ ").startswith("kinetoscope "):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            calls.append(words[1 : words.index(">") if ">" in words else None])
    return calls


def calls_on(page: Path) -> list[list[str]]:
    """The words of the calls of kinetoscope in the blocks of a page."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [call for language, block in blocks if language in SHELLS for call in calls_in(block)]


def calls_between(page: Path) -> list[list[str]]:
    """The words of the calls of kinetoscope in its sentences and tables, but for those that only begin one."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    calls = [
        shlex.split(" ".join(code.replace("\\|", "|").split()))
        for code in INLINE.findall(text)
        if "'" not in code
    ]
    return [words[1:] for words in calls if words[:1] == ["kinetoscope"] and len(words) > 1]


@pytest.mark.parametrize("page", [page for page in PAGES if calls_between(page)], ids=lambda page: page.name)
def test_commands_in_sentences_exist_with_their_options(page):
    context = cli.main.make_context("kinetoscope", [], resilient_parsing=True)
    for name, *words in calls_between(page):
        if name.startswith("-") or name == "COMMAND":
            continue
        command = cli.main.get_command(context, name)
        assert command is not None, f"there is no kinetoscope {name}"
        options = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        named = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
        program = next((place for place, word in enumerate(named) if word.endswith(".py")), None)
        unknown = (
            {word for word in named[:program] if word.startswith("-") and len(word) > 1}
            - options
            - {"-h", "--help"}
        )
        assert not unknown, f"kinetoscope {name} has no {', '.join(unknown)}"


@pytest.mark.parametrize("page", [page for page in PAGES if calls_on(page)], ids=lambda page: page.name)
def test_commands_in_blocks_are_accepted(page):
    context = cli.main.make_context("kinetoscope", [], resilient_parsing=True)
    for name, *words in calls_on(page):
        command = cli.main.get_command(context, name)
        assert command is not None, f"there is no kinetoscope {name}"
        # Refuses options that there are not, and a number of arguments that does not fit; reads no file.
        parser = command.make_parser(click.Context(command, **command.context_settings))
        parser.parse_args(list(words))


def test_targets_scripts_and_tests_that_pages_name_exist():
    """`make NAME`, `python -m benchmarks NAME`, `python tools/NAME.py` and the paths of tests."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"(?:`|^\$ |^|&& )make ([a-z-]+)", text, re.MULTILINE)
        missing += [f"make {name}" for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)]
        scripts = re.findall(r"python -m benchmarks ([a-z_]+)", text)
        missing += [f"python -m benchmarks {name}" for name in scripts if name not in BENCHMARKS]
        paths = re.findall(r"\b(?:tools|tests|benchmarks)/[\w/]+(?:\.py|\b(?=[` ]))", text)
        missing += [
            path for path in paths if not (re.search(r"/a/|[A-Z]{3}", path) or (ROOT / path).exists())
        ]
        for path, word in re.findall(r"pytest (\S+\.py) -k (\w+)", text):
            tests = re.findall(r"^def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            missing += [f"{path} -k {word}"] if not any(word in test for test in tests) else []
    assert missing == []


def training(steps=105, rank=0):
    """Steps of 50 ms of a small model."""
    builder = TraceBuilder()
    stack = builder.stack(("/job/train.py", 12, "<module>"))
    for number in range(steps):
        at = number * 50 * MS
        builder.step(number, at, 49 * MS)
        builder.span("aten::mm", at + MS, 30 * MS, stack=stack)
        builder.allocate(at + 2 * MS, 4096 * (number + 1), 1024)
    trace = builder.know("host", "node0").build()
    trace.info.update(
        rank=rank,
        process=100 + rank,
        start_realtime_ns=START_REALTIME_NS,
        boot_id="one",
        start_monotonic_ns=rank,
    )
    return trace


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("documented")
    (folder / "train.py").write_text(TRAIN)
    trace = training()
    for name in ("train", "run", "yesterday", "today", "base-1", "base-2", "new-1", "new-2", "steps"):
        trace.save(folder / f"{name}.ktrace")
    trace.save(folder / "run.json.gz")
    for place in ("traces", "builds"):
        (folder / place).mkdir()
    for rank in range(3):
        of_rank = training(8, rank)
        of_rank.save(folder / f"rank{rank}{'.json.gz' if rank == 2 else '.ktrace'}")
        of_rank.save(folder / "traces" / f"rank{rank}.json.gz")
        of_rank.save(folder / "builds" / f"build-{rank}.ktrace")
    report = NsightFile()
    report.call("cudaLaunchKernel", 1_000, 2_000, 1)
    report.kernel("gemm", 3_000, 9_000, 1)
    report.write(folder / "report.sqlite")
    snapshot = {"segments": [], "device_traces": [[]]}
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    warm_python.run("-c", KILLED, cwd=folder)
    assert (folder / "train.recording").exists()
    return folder


# A command that stands on several pages runs once.
FIRST_PAGES = {" ".join(words): page for page in reversed(PAGES) for words in calls_on(page)}


@pytest.mark.parametrize("page", sorted({*FIRST_PAGES.values()}), ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, files, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KINETOSCOPE_DIR", str(tmp_path / "jobs"))
    for words in calls_on(page):
        call = " ".join(words)
        if FIRST_PAGES[call] != page or any(call.startswith(begin) for begin in NOT_RUN):
            continue
        if words[0] == "run":
            done = warm_python.run("-m", "kinetoscope", *words, cwd=folder)
            code, said = done.returncode, done.stdout + done.stderr
        else:
            result = CliRunner().invoke(cli.main, words)
            code, said = result.exit_code, result.output
            assert result.exception is None or isinstance(result.exception, SystemExit), (
                call,
                result.exception,
            )
        assert code in {0} | EXIT_CODES.get(words[0], set()), f"kinetoscope {call}: {said}"


def test_each_reason_not_to_run_a_command_is_one_of_a_page():
    calls = [" ".join(words) for page in PAGES for words in calls_on(page)]
    assert [begin for begin in NOT_RUN if not any(call.startswith(begin) for call in calls)] == []
