"""Answers for coding agents: through the real client of the protocol, confined to folders, and short."""

import asyncio
import json
import os
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope import ArgumentError, MissingDependencyError
from kinetoscope.integrations.agents import MOST_BYTES, TraceAnswers, fitted, mcp_server
from tests.cli.conftest import training_trace
from tests.support.controlled_job import controlled_job
from tests.support.on_demand import OnDemand
from tests.support.recording_builder import RecordingBuilder
from tests.support.trace_builder import TraceBuilder

mcp = OnDemand("mcp", "agents are answered with the package mcp")


@pytest.fixture
def folder(tmp_path):
    """A folder with a trace, and a trace beside it that must not be read."""
    runs = tmp_path / "runs"
    runs.mkdir()
    builder = training_trace()
    builder.know("source_lines", {"/code/train.py": {"12": "secret = model(x)"}})
    for path in (runs / "run.ktrace", tmp_path / "private.ktrace"):
        builder.build().save(path)
    (runs / "link.ktrace").symlink_to(tmp_path / "private.ktrace")
    return runs


def calls(server, *asked):
    """What tools answer, called one after the other by the real client: whether each failed, and its text."""

    async def ask():
        async with mcp.Client(server) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in asked]
            return [(one.is_error, one.content[0].text) for one in answers]

    return asyncio.run(ask())


def test_a_client_that_starts_the_command_is_answered(folder):
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "kinetoscope", "mcp", str(folder)], env=dict(os.environ)
    )
    (wrong, text), (missing, why) = calls(
        server,
        ("table", {"path": "run.ktrace", "columns": ["name", "count"], "limit": 1}),
        ("table", {"path": "run.ktrace", "name": "opps"}),
    )
    assert not wrong
    assert json.loads(text) == {
        "complete": True,
        "total_rows": 5,
        "rows": [{"name": "aten::addmm", "count": 2}],
    }
    assert missing
    assert "there is no table 'opps'" in why


def test_each_tool_says_what_it_answers_and_that_it_only_reads(folder):
    async def tools():
        async with mcp.Client(mcp_server(TraceAnswers([folder]))) as client:
            return (await client.list_tools()).tools

    found = {tool.name: tool for tool in asyncio.run(tools())}
    reading = {"open", "findings", "evidence", "table", "compare", "ranks", "last"}
    assert {name for name, tool in found.items() if tool.annotations.read_only_hint} == reading
    assert set(found) == reading | {"capture"}
    assert all(tool.description for tool in found.values())
    assert found["table"].input_schema["required"] == ["path"]


def test_every_tool_answers_about_a_trace(folder):
    answered = calls(
        mcp_server(TraceAnswers([folder])),
        ("open", {"path": "run.ktrace"}),
        ("findings", {"path": "run.ktrace"}),
        ("table", {"path": "run.ktrace", "name": "ops", "by": "module", "sort": "self_ns"}),
        ("table", {"path": "run.ktrace", "name": "spans", "where": {"name": ["aten::addmm"]}}),
        ("compare", {"base": "run.ktrace", "new": "run.ktrace"}),
    )
    facts = [json.loads(text) for failed, text in answered if not failed]
    assert len(facts) == len(answered), answered
    assert facts[0]["counts"]["steps"] == 2
    assert facts[1]["steps"] == 1
    assert facts[3]["total_rows"] == 2
    assert all(len(text.encode()) <= MOST_BYTES for _, text in answered)


def test_without_a_path_the_traces_in_the_folders_are_listed(folder):
    (folder / ".hidden").mkdir()
    for name in ("later/run2.pt.trace.json.gz", ".hidden/other.ktrace", "package.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"{}")
    os.utime(folder / "run.ktrace", (10, 10))
    ((failed, text), (_, why)) = calls(
        mcp_server(TraceAnswers([folder])), ("open", {}), ("findings", {"path": "none.ktrace"})
    )
    assert not failed
    # Neither what a link leads to outside, nor what is no trace by its name.
    listed = json.loads(text)["traces"]
    assert [one["path"] for one in listed] == [
        str(folder / "later" / "run2.pt.trace.json.gz"),
        str(folder / "run.ktrace"),
    ]
    assert (listed[0]["bytes"], listed[1]["modified"]) == (2, "1970-01-01T00:00:10+00:00")
    assert "`open` without a path lists the traces" in why


def test_one_step_is_compared_with_usual_ones(folder):
    ((failed, text),) = calls(
        mcp_server(TraceAnswers([folder])),
        ("table", {"path": "run.ktrace", "name": "step_difference", "step": 7}),
    )
    assert failed
    assert "step=7 is not a step that can be compared" in text


def test_numbers_have_few_digits():
    assert json.loads(fitted({"share": 84.45050470183833, "of": [1e-9 / 3], "count": 1234567890})) == {
        "share": 84.4505,
        "of": [3.33333e-10],
        "count": 1234567890,
    }


def test_a_finding_comes_with_the_spans_that_prove_it(tmp_path):
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        builder.span("aten::mm", step * 10_000_000, 2_000_000, stack=builder.stack(("train.py", 3, "train")))
    builder.build().save(tmp_path / "slow.ktrace")
    answers = TraceAnswers([tmp_path])
    shown = json.loads(answers.answer(answers.evidence, path="slow.ktrace", code="python-bound"))
    assert shown["findings"][0]["file"] == "train.py"
    assert {row["name"] for row in shown["rows"]} == {"aten::mm"}
    with pytest.raises(ArgumentError, match="no finding 'gc'"):
        answers.evidence("slow.ktrace", "gc")


@pytest.mark.parametrize(
    "path", ["../private.ktrace", "link.ktrace", "{outside}", "/etc/passwd", "https://example.com/trace.json"]
)
def test_nothing_outside_the_folders_is_read(folder, path):
    path = path.format(outside=folder.parent / "private.ktrace")
    with pytest.raises((ArgumentError, FileNotFoundError)) as refused:
        TraceAnswers([folder]).open(path)
    # A URL is the name of a file that does not exist.
    assert "outside the folders" in str(refused.value) or "example.com" in path


@pytest.mark.parametrize("member", ["stored.ktrace", "spans.parquet", "new.parquet"])
def test_no_member_of_a_folder_of_tables_leads_outside(folder, member):
    outside = folder.parent / "private.tables"
    for path in (folder / "run.tables", outside):
        training_trace().build().save(path)
    (folder / "run.tables" / member).unlink(missing_ok=True)
    (folder / "run.tables" / member).symlink_to(outside / member)
    with pytest.raises(ArgumentError, match=f"run.tables/{member} is outside the folders"):
        TraceAnswers([folder]).open("run.tables")


def test_no_summary_or_recording_of_a_folder_leads_outside(folder):
    RecordingBuilder().write(folder.parent / "rank0.recording")
    (folder.parent / "rank0.json").write_text('{"reason": "private"}')
    incident = folder / "incident"
    incident.mkdir()
    (incident / "rank0.recording").symlink_to(folder.parent / "rank0.recording")
    answers = TraceAnswers([folder])
    for ask in (answers.open, answers.ranks):
        with pytest.raises(ArgumentError, match="rank0.recording is outside the folders"):
            ask("incident")
    # What stands beside a recording is read with it.
    RecordingBuilder().write(folder / "rank0.recording")
    (folder / "rank0.json").symlink_to(folder.parent / "rank0.json")
    assert "private" not in json.dumps(answers.open("rank0.recording"))


def test_a_job_is_named_by_one_folder_only(folder):
    for name in ("..", "a/..", "../x"):
        with pytest.raises(ArgumentError, match="is not a job with the flight recorder on"):
            TraceAnswers([folder]).last(name)


@pytest.mark.parametrize("allowed", [False, True])
def test_the_text_of_source_lines_needs_a_permission(folder, allowed):
    answers = TraceAnswers([folder], source_text=allowed)
    info = answers.answer(answers.table, path="run.ktrace", name="info")
    assert ("secret" in info) == allowed


def test_a_file_that_changed_is_read_again(folder):
    answers = TraceAnswers([folder])
    before = answers.table(path="run.ktrace", name="steps")["total_rows"]
    path = folder / "run.ktrace"
    builder = training_trace()
    builder.annotation("Optimizer.step#SGD.step", 28_000_000, 1_500_000)
    builder.build().save(path)
    os.utime(path, ns=(1, 1))
    assert answers.table(path="run.ktrace", name="steps")["total_rows"] == before + 1


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="is not a folder"):
        TraceAnswers([tmp_path / "none"])


def test_without_the_package_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(MissingDependencyError, match=r"kinetoscope\[mcp\]"):
        mcp_server(TraceAnswers([folder]))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=800),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=20), inner, max_size=8),
    max_leaves=60,
)


@given(
    facts=st.dictionaries(st.text("abcdefgh", min_size=1, max_size=8), VALUES, max_size=6),
    most=st.integers(500, 4000),
)
@settings(max_examples=60)
def test_an_answer_is_never_too_long_and_says_what_it_left_out(facts, most):
    text = fitted(facts, most)
    assert len(text.encode()) <= most
    shown = json.loads(text)
    left_out = shown.get("left_out", {})
    for key, value in facts.items():
        if isinstance(value, list | dict) and "why" not in shown and key != "left_out":
            assert len(shown[key]) + left_out.get(key, 0) == len(value)


def test_a_job_that_runs_can_be_looked_at_and_captured(folder, tmp_path, monkeypatch):
    with controlled_job(tmp_path) as job:
        job.do("steps", 3)
        monkeypatch.setenv("KINETOSCOPE_DIR", str(job.folder))
        (place,) = job.folder.iterdir()
        server = mcp_server(TraceAnswers([folder]))
        (wrong, last), (by_name_wrong, by_name), (outside, why) = calls(
            server, ("last", {}), ("last", {"target": place.name}), ("last", {"target": "../elsewhere"})
        )
        assert not wrong
        assert not by_name_wrong
        assert json.loads(last)["ranks"][0]["step"] == 2
        assert json.loads(by_name)["job"] == place.name
        assert outside
        assert "is not a job with the flight recorder on" in why
        answered = []
        thread = threading.Thread(
            target=lambda: answered.extend(
                calls(server, ("capture", {"target": str(job.process.pid), "steps": 2}))
            )
        )
        thread.start()
        while thread.is_alive():
            job.do("steps", 1)
        ((failed, text),) = answered
        assert not failed, text
        path = json.loads(text)["path"]
        assert os.path.dirname(path) == str(folder)
        ((_, table),) = calls(server, ("table", {"path": path, "name": "steps", "columns": ["number"]}))
        assert json.loads(table)["total_rows"] == 2
