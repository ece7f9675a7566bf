"""The command itself: what it lists, what it says when something is wrong."""

import json
import os
import re
import subprocess
import sys

import pytest

import kinetoscope
from kinetoscope.cli import main
from kinetoscope.cli.group import COMMANDS
from tests.support.trace_builder import TraceBuilder


def test_help_lists_every_command(call):
    shown = call("--help")
    assert shown.exit_code == 0
    for name, meaning in COMMANDS.items():
        assert f"  {name} " in shown.stdout
        assert meaning in shown.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(call, name):
    shown = call(name, "--help")
    assert shown.exit_code == 0
    assert f"Usage: kinetoscope {name}" in shown.stdout


def test_the_version(call):
    assert call("--version").stdout == f"kinetoscope {kinetoscope.__version__}\n"


def test_without_a_command_the_help_is_shown_and_it_is_an_error(call):
    shown = call()
    assert shown.exit_code == 2
    assert "Commands:" in shown.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'."),
        (["info"], 2, "Missing argument 'TRACE'."),
        (["info", "--nonsense"], 2, "No such option"),
        (["info", "nowhere.ktrace"], 1, "nowhere.ktrace: No such file or directory"),
        (
            ["run", "--ring", "much", "x.py"],
            1,
            "'much' is not a size: write a number of bytes such as 64M, 64MiB or 2G.",
        ),
        (["run", "--steps", "5", "x.py"], 1, "--steps 5 is not a range of steps"),
        (["run", "--steps", "5:5", "x.py"], 1, "--steps 5:5 is not a range of steps"),
        (["run", "--engine", "magic", "x.py"], 2, "'magic' is not one of 'auto', 'native', 'kineto'."),
        (["run", "-o", "/", "x.py"], 1, "the output '/' is not a file name"),
        (["run"], 2, "Missing argument 'PROGRAM'."),
        (["demo", "--steps", "0"], 2, "0 is not in the range"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(call, words, code, message):
    shown = call(*words)
    assert shown.exit_code == code
    assert shown.stdout == ""
    assert shown.stderr.startswith("kinetoscope: error: ")
    assert shown.stderr.count("\n") == 1
    assert message in shown.stderr


def test_what_is_no_trace_is_refused_in_one_line(call, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    shown = call("info", tmp_path / "notes.txt")
    assert shown.exit_code == 1
    assert shown.stderr.count("\n") == 1
    assert "does not contain a trace" in shown.stderr


def test_a_reader_that_has_enough_is_no_error_to_talk_about(trace_path):
    words = [
        sys.executable,
        "-m",
        "kinetoscope",
        "table",
        str(trace_path),
        "strings",
        "--csv",
        "--limit",
        "0",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() in (0, 1)


def test_help_and_errors_need_neither_torch_nor_arrow():
    program = """
import sys
from click.testing import CliRunner
from kinetoscope.cli import main
for words in (["--help"], ["run", "--help"], ["run", "nowhere.py"], ["info", "nowhere"], ["nonsense"]):
    CliRunner().invoke(main, words)
print([name for name in ("torch", "duckdb") if name in sys.modules])
CliRunner().invoke(main, ["run", "--help"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_heavy_is_loaded_before_the_program_is(tmp_path):
    heavy = ("torch", "numpy", "pyarrow", "rich")
    (tmp_path / "program.py").write_text(
        f"import sys; print([name for name in {heavy} if name in sys.modules])"
    )
    words = [sys.executable, "-m", "kinetoscope", "run", "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "way", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
@pytest.mark.parametrize("words", [["report", "--text"], ["table"], ["info"], ["sql"]])
def test_an_output_that_holds_only_ascii_gets_the_same_in_plain_letters(tmp_path, way, words):
    builder = TraceBuilder()
    builder.span("aten::µ – ✓ größer é 中", 0, 12_345).build().save(tmp_path / "run.ktrace")
    arguments = {"table": ["ops"], "sql": ["select name, duration_ns from spans"]}.get(words[0], [])
    done = subprocess.run(
        [sys.executable, "-m", "kinetoscope", *words, tmp_path / "run.ktrace", *arguments],
        check=False,
        capture_output=True,
        env={**os.environ, **way},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    told = done.stdout.decode("ascii")
    assert "aten::u - ok grosser e \\u4e2d" in told or words == ["info"]
    assert "?" not in told


def test_a_summary_of_kernels_that_took_no_time_is_a_summary(call, tmp_path):
    def event(kind, name, start, duration, **arguments):
        device = kind == "kernel"
        return {"ph": "X", "cat": kind, "name": name, "pid": 0 if device else 1, "tid": 7 if device else 1,
                "ts": start, "dur": duration, "args": {"correlation": 1, "External id": 1, **arguments}}  # fmt: skip

    events = [
        event("cpu_op", "aten::mm", 0, 5),
        event("cuda_runtime", "cudaLaunchKernel", 1, 1),
        event("kernel", "gemm", 2, 0, device=0, stream=7),
    ]
    path = tmp_path / "zero.json"
    path.write_text(
        json.dumps(
            {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100"}], "traceEvents": events}
        )
    )
    ended = call("report", "--text", path)
    assert ended.exit_code == 0, ended.exception
    assert re.search(r"gemm\s+0 ns\s+–\s+1", ended.stdout)


def test_a_command_that_is_nearly_one_is_a_question(call):
    ended = call("inof", "x")
    assert (ended.exit_code, ended.stderr.strip()) == (
        2,
        "kinetoscope: error: unknown command 'inof'; did you mean 'info'?",
    )
    assert "No such command 'xyzzy'" in call("xyzzy").stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["x.py", "--memory", "--lr=1", "--no-stack"],
            "--memory, --no-stack come after the program and belong to it",
        ),
        (["x.py", "--steps=3"], "--steps comes after the program and belongs to it"),
        (["--memory", "-m", "x.y", "--chrome"], "options of `kinetoscope run` come before x.y"),
        (["x.py", "-o", "out", "--lr", "1", "--help"], None),
        (["x.py", "--lr", "1", "--", "--memory"], None),
        (["--", "x.py", "--memory"], None),
        (["--memory", "--", "x.py", "--memory"], None),
    ],
)
def test_an_option_of_run_after_the_program_gets_a_hint(capsys, monkeypatch, words, hint):
    monkeypatch.delenv("RANK", raising=False)
    command = main.get_command(None, "run")
    command.make_context("run", [*words])
    said = capsys.readouterr().err
    assert said.count("\n") == (0 if hint is None else 1)
    assert hint is None or hint in said
    # One line for a job of several ranks, not one for each.
    monkeypatch.setenv("RANK", "1")
    command.make_context("run", [*words])
    assert capsys.readouterr().err == ""


def test_a_trace_comes_through_standard_input(tmp_path):
    TraceBuilder().span("aten::mm", 0, 100).build().save(tmp_path / "run.json")
    with (tmp_path / "run.json").open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "kinetoscope", "table", "-", "ops"],
            check=True, stdin=file, capture_output=True, text=True,
        )  # fmt: skip
    assert "aten::mm" in done.stdout


@pytest.mark.parametrize("name", ["out.json", "out.ktrace"])
def test_a_folder_that_is_not_there_is_told_by_the_name_that_was_given(call, tmp_path, name):
    TraceBuilder().span("aten::mm", 0, 100).build().save(tmp_path / "run.ktrace")
    wanted = tmp_path / "missing" / name
    ended = call("convert", tmp_path / "run.ktrace", wanted)
    assert ended.exit_code == 1
    assert ended.stderr.strip() == f"kinetoscope: error: {wanted.parent}: No such file or directory"


def test_sql_says_what_a_query_may_do(call):
    assert "can read and write files" in " ".join(call("sql", "--help").stdout.split())


def test_info_leaves_the_command_line_out_where_it_is_not_wanted(call, tmp_path):
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    trace.info["command_line"] = ["train.py", "--token=sesame"]
    trace.save(tmp_path / "run.ktrace")
    assert "sesame" in call("info", tmp_path / "run.ktrace").stdout
    shown = call("info", "--no-command-line", tmp_path / "run.ktrace")
    assert shown.exit_code == 0
    assert "sesame" not in shown.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["info", "A"], ["findings", "A"], ["findings", "A", "--json"], ["compare", "A", "B"], ["compare", "A", "B", "--json"],
        ["report", "--text", "A"], ["table", "A", "ops"], ["table", "A", "modules"], ["table", "A", "lines"], ["table", "A", "info"],
        ["sql", "A", "select name from spans"], ["check", "BUDGET", "B"], ["merge", "A", "B", "-o", "OUT"],
        ["table", "A", "\x1b[31mnothing"], ["info", "\x1b[31mnothing"], ["\x1b[31mnothing"], ["convert", "A", "\x1b[31m.json"],
    ],
    ids=str,
)  # fmt: skip
def test_no_name_reaches_the_terminal_as_a_control_sequence(call, tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = "\x1b]0;evil\x07\x1b[31m\r\n\x9b2J\u202e x"
    places = {name: tmp_path / f"{name}.ktrace" for name in ("A", "B", "OUT")} | {
        "BUDGET": tmp_path / "budget.toml"
    }
    for number, name in enumerate(("A", "B")):
        builder = TraceBuilder()
        module = builder.module(hostile)
        stack = builder.stack((f"{hostile}.py", 12, hostile))
        for step in range(6):
            builder.step(step, step * 10_000_000, 10_000_000)
            for call_of_step in range(3 + number):
                at_ns = step * 10_000_000 + 2_000_000 * call_of_step
                builder.span(hostile, at_ns, 1_900_000, module=module, stack=stack)
        builder.know("program", {"command": [hostile], "ended": hostile}).know("engine", hostile)
        builder.know("rank", number).know("host_name", hostile).know(hostile, hostile)
        builder.build().save(places[name])
    assert call("check", places["BUDGET"], places["A"], "--update").exit_code == 0
    done = call(*(places.get(word, word) for word in words))
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "evil" in done.output or "nothing" in done.output or words[0] in ("check", "merge", "convert")
    assert [line for line in done.output.split("\n") if not line.isprintable()] == []
