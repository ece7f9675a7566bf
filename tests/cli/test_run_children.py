"""How what the children recorded joins the trace of the program: from their files, without any process."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.cli.run import ProgressLine
from kinetoscope.collect.request.options import RecordingOptions
from kinetoscope.launcher import child_hook, notes
from kinetoscope.launcher.children import Children, _make_folder
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.model.processes import process_tree
from kinetoscope.trace import Trace
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

OURS = os.getpid()


def recorded(process: int, *names: str, began_ns: int = 0, rank: int | None = None) -> Trace:
    """A trace of one process."""
    builder = TraceBuilder()
    for place, name in enumerate(names):
        builder.span(name, place * 100, 50)
    trace = builder.build()
    trace.info |= {"process": process, "start_realtime_ns": START_REALTIME_NS + began_ns}
    if rank is not None:
        trace.info["rank"] = rank
    return trace


class Joined(NamedTuple):
    """The trace of all processes, None without one, and what is to be said of them."""

    trace: Trace | None
    messages: list[str]


class Family:
    """A run in a folder, and its children's files."""

    def __init__(self, folder: Path) -> None:
        self.options = LaunchOptions(prefix=folder / "run", folder=folder, children=True)
        self.folder = self.options.children_folder
        self.folder.mkdir()
        self.children = Children(self.options)

    def child(
        self, process: int, *names: str, info: dict | None = None, note: dict | None = None, **facts
    ) -> None:
        """One child: its trace, if it has recorded anything, with some metadata, and its note."""
        name = notes.claim(str(self.folder), str(process), {})
        told = {"process": process, **(note or {})}
        if names:
            trace = recorded(process, *names, **facts)
            own = {"ancestors": [OURS, 1], "ended": "exit code 0", **(info or {})}
            trace.info |= {key: fact for key, fact in own.items() if fact is not None}
            trace.save(self.folder / f"{name}.ktrace")
            told = {"recording": f"{name}.ktrace", **told}
        notes.rewrite(str(self.folder), name, told)

    def join(self, *own: str) -> Joined:
        return Joined(*self.children.join(recorded(OURS, *own) if own else None, "train.py"))


@pytest.fixture
def family(tmp_path):
    return Family(tmp_path)


def shown(trace) -> list[str]:
    """The tree of processes, indented."""
    return [
        f"{'-' * row['depth']}{row['name']} {row['pid']} {row['ended']}".strip()
        for row in process_tree(trace)
    ]


def test_a_program_without_children_has_its_own_trace(family):
    joined = family.join("a")
    assert joined.messages == []
    assert len(joined.trace.columns("processes")) == 0


def test_the_tree_has_each_process_under_the_nearest_one_that_was_recorded(family):
    family.child(7, "b", began_ns=10, info={"process_name": "worker"})
    family.child(
        9,
        "c",
        began_ns=30,
        info={"ancestors": [8, 7, OURS, 1], "process_name": "inner", "ended": "exit code 3"},
    )
    family.child(11, "d", began_ns=20, info={"ancestors": [10, OURS, 1]})
    trace = family.join("a").trace
    assert shown(trace) == [
        f"train.py {OURS}",
        "-worker 7 exit code 0",
        "--inner 9 exit code 3",
        "-python 11 exit code 0",
    ]
    entry = trace.info["processes"][3]
    assert (entry["recorded_parent"], entry["ancestors"]) == (7, [8, 7, OURS])
    assert sorted(set(trace.table("spans").column("process").to_pylist())) == sorted({OURS, 7, 9, 11})


def test_ranks_are_in_their_order_whoever_began_first(family):
    family.child(7, "b", began_ns=10, rank=1)
    family.child(8, "c", began_ns=20, rank=0)
    assert family.join("a").trace.column("processes", "rank").tolist() == [-1, 0, 1]


def test_what_a_child_learned_when_its_recording_was_over_is_in_its_note(family):
    family.child(7, "b", info={"ended": None}, note={"ended": "exit code 3", "process_name": "late"})
    assert shown(family.join("a").trace)[1:] == ["-late 7 exit code 3"]


def test_a_rank_that_a_child_learned_late_is_its_rank(family):
    family.child(7, "b", note={"rank": 1})
    family.child(8, "c", rank=0)
    assert family.join("a").trace.column("processes", "rank").tolist() == [-1, 0, 1]


def test_children_that_computed_nothing_are_not_there(family):
    family.child(7)
    recorded(8).save(family.folder / "8.ktrace")
    notes.claim(str(family.folder), "8", {"process": 8, "recording": "8.ktrace"})
    assert family.join().trace is None
    assert family.children.count == 0
    family.children.clear()
    assert not family.folder.exists()


def test_children_of_a_program_without_torch_are_a_trace_of_their_own(family):
    family.child(7, "b", began_ns=10)
    family.child(8, "c", began_ns=20, info={"ancestors": [7, OURS]})
    trace = family.join().trace
    assert shown(trace) == ["python 7 exit code 0", "-python 8 exit code 0"]
    assert not {"ancestors", "ended", "recorded_parent"} & set(trace.info)


def test_what_could_not_be_recorded_is_a_loss_for_each_reason(family):
    for process in (7, 8):
        notes.claim(str(family.folder), str(process), {"process": process, "problem": "no room"})
    notes.claim(str(family.folder), "9", {"process": 9, "in_memory": True})
    notes.claim(str(family.folder), "10", {"process": 10, "recording": "10.ktrace"})
    (family.folder / "10.ktrace").write_bytes(b"PK\x03\x04 but nothing more")
    (family.folder / child_hook.UNFOLLOWED_FILE).write_text("-I\nvariables\n-I\n")
    joined = family.join("a")
    rows = sorted((loss["code"], loss["count"], loss["why"]) for loss in joined.trace.losses)
    assert [row[:2] for row in rows] == [
        ("processes_not_followed", 1),
        ("processes_not_followed", 2),
        ("processes_not_recorded", 1),
        ("processes_not_recorded", 1),
        ("processes_not_recorded", 2),
    ]
    assert "-I" in rows[1][2]
    assert "it was killed" in rows[3][2] or "it was killed" in rows[2][2]
    assert rows[4][2] == "no room"
    assert joined.messages == []
    nothing = family.join().messages
    assert len(nothing) == 5
    assert "processes that could not be recorded (2): no room" in nothing


def test_a_child_that_still_runs_keeps_its_file(family):
    ticks = notes.start_ticks(os.getppid())
    running = {"ended": None, "process_name": "server"}
    family.child(os.getppid(), "b", info=running, note={"start_ticks": ticks})
    # The number is used again: this one is over.
    family.child(1, "c", info=running, note={"start_ticks": 5})
    joined = family.join("a")
    assert [row.partition(" ")[2].partition(" ")[2] for row in shown(joined.trace)[1:]] == [
        "killed, crashed or became another program",
        "still running",
    ]
    assert joined.messages == [
        "1 process is still running: the trace ends now, and later records go to a file in run.children"
    ]
    family.children.clear()
    assert sorted(path.suffix for path in family.folder.iterdir()) == [".json", ".ktrace"]


def test_numbers_that_were_used_again_do_not_hide_a_process(family):
    family.child(7, "b", info={"ancestors": [8]})
    family.child(8, "c", info={"ancestors": [7]})
    assert sorted(shown(family.join("a").trace)) == [
        "python 7 exit code 0",
        "python 8 exit code 0",
        f"train.py {OURS}",
    ]


def test_the_line_that_is_shown_meanwhile_counts_them(family, capfd, monkeypatch):
    for name in ("7", "9-rank1"):
        (family.folder / f"{name}.recording").write_bytes(b"")
    line = ProgressLine(family.options)
    monkeypatch.setattr("sys.__stderr__.isatty", lambda: True, raising=False)
    line.started("native")
    line.stopped()
    assert capfd.readouterr().err.splitlines()[0] == (
        "kinetoscope: recording to run.recording (native engine), 2 child processes"
    )


def test_the_summary_begins_before_the_trace_is_read(family, capfd):
    silent = ProgressLine(family.options, "train.py --epochs 3", summary=True)
    silent.recorded()
    assert capfd.readouterr().err == ""
    line = ProgressLine(family.options, "train.py --epochs 3", summary=True)
    line.started("native")
    line.recorded()
    assert capfd.readouterr().err.startswith("\n━━ kinetoscope train.py --epochs 3 ━━")


def test_a_standard_error_that_cannot_be_written_to_loses_the_first_line_only(family, monkeypatch):
    line = ProgressLine(family.options, "train.py", summary=True)
    line.started("native")
    with open(os.devnull) as unwritable:
        monkeypatch.setattr("sys.stderr", unwritable)
        line.recorded()


@pytest.mark.parametrize("other", [["--install"], ["--engine", "kineto"]], ids=["install", "kineto"])
def test_children_record_with_our_recorder_from_their_beginning(call, tmp_path, other):
    ended = call("run", "--children", *other, tmp_path / "train.py")
    assert ended.exit_code == 1
    assert "children (--children) cannot be combined with" in ended.output
    assert f"({' '.join(other)})" in ended.output


def test_a_folder_that_holds_something_else_is_an_error(family):
    _make_folder(family.folder, family.options)
    family.children.stop_following()
    for name in ("12.recording", "12.json", "12.json.34", "12.5.terminated", child_hook.UNFOLLOWED_FILE):
        (family.folder / name).write_text("of a run that was killed")
    _make_folder(family.folder, family.options)
    assert os.listdir(family.folder) == [child_hook.OPTIONS_FILE]
    assert family.folder.stat().st_mode & 0o777 == 0o700
    (family.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ArgumentError, match="contains other files"):
        _make_folder(family.folder, family.options)


def test_the_options_reach_the_children(tmp_path):
    options = LaunchOptions(
        prefix=tmp_path / "run",
        recording=RecordingOptions(record_shapes=True, ring_bytes=1 << 20, engine="native"),
        steps=(2, None),
        children=True,
    )
    assert LaunchOptions.from_json(options.to_json()) == options


def test_a_folder_that_may_not_be_read_any_more_is_a_loss(family, monkeypatch):
    family.child(9, "aten::mm")
    # As after os.setuid.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    joined = family.join("aten::add")
    (loss,) = joined.trace.losses
    assert loss["code"] == "processes_not_recorded"
    assert "the program changed its user, and may not read" in loss["why"]
    family.children.clear()
    monkeypatch.undo()
    assert len(family.join("aten::add").trace.columns("processes")) == 2


def test_a_folder_of_others_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "place" / "run.children"
    options = LaunchOptions(prefix=folder.parent / "run")
    folder.mkdir(parents=True)
    ours = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: ours + 1)
    with pytest.raises(ArgumentError, match="another user's"):
        _make_folder(folder, options)
    monkeypatch.undo()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(ArgumentError, match="is a link"):
        _make_folder(folder, options)
    assert list(elsewhere.iterdir()) == []
