"""How what the children recorded joins the trace of the program: from their files, without any process."""

import json
import os
from pathlib import Path

import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.cli.progress import ProgressLine
from kinetoscope.launch import child_notes, child_places
from kinetoscope.launch.children import Children
from kinetoscope.launch.options import Wanted
from kinetoscope.tables.host.processes import process_tree
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


class Family:
    """A run in a folder, and its children's files."""

    def __init__(self, folder: Path) -> None:
        self.wanted = Wanted(prefix=folder / "run", folder=folder, children=True)
        self.folder = self.wanted.children_folder
        self.folder.mkdir()
        self.children = Children(self.wanted)

    def child(self, process: int, *names: str, note: dict | None = None, **facts) -> None:
        """One child: its trace, if it has recorded anything, and its note."""
        name = child_notes.claim(str(self.folder), str(process), {})
        told = {"process": process, "ancestors": [OURS, 1], "ended": "exit code 0", **(note or {})}
        if names:
            recorded(process, *names, **facts).save(self.folder / f"{name}.ktrace")
            told = {"recording": f"{name}.ktrace", **told}
        child_notes.rewrite(
            str(self.folder), name, {key: fact for key, fact in told.items() if fact is not None}
        )

    def join(self, *own: str):
        return self.children.join(recorded(OURS, *own) if own else None, "train.py")


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
    assert (joined.children, joined.notes) == (0, ())
    assert len(joined.trace.columns("processes")) == 0


def test_the_tree_has_each_process_under_the_nearest_one_that_was_recorded(family):
    family.child(7, "b", began_ns=10, note={"name": "worker"})
    family.child(
        9, "c", began_ns=30, note={"ancestors": [8, 7, OURS, 1], "name": "inner", "ended": "exit code 3"}
    )
    family.child(11, "d", began_ns=20, note={"ancestors": [10, OURS, 1]})
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


def test_a_rank_that_a_child_learned_late_is_its_rank(family):
    family.child(7, "b", note={"rank": 1})
    family.child(8, "c", rank=0)
    assert family.join("a").trace.column("processes", "rank").tolist() == [-1, 0, 1]


def test_children_that_computed_nothing_are_not_there(family):
    family.child(7)
    recorded(8).save(family.folder / "8.ktrace")
    child_notes.claim(str(family.folder), "8", {"process": 8, "recording": "8.ktrace"})
    assert family.join().trace is None
    assert family.children.count == 0
    family.children.clear()
    assert not family.folder.exists()


def test_children_of_a_program_without_torch_are_a_trace_of_their_own(family):
    family.child(7, "b", began_ns=10)
    family.child(8, "c", began_ns=20, note={"ancestors": [7, OURS]})
    trace = family.join().trace
    assert shown(trace) == ["python 7 exit code 0", "-python 8 exit code 0"]
    assert not {"ancestors", "ended", "recorded_parent"} & set(trace.info)


def test_what_could_not_be_recorded_is_told_once_for_each_reason(family):
    for process in (7, 8):
        child_notes.claim(str(family.folder), str(process), {"process": process, "problem": "no room"})
    child_notes.claim(str(family.folder), "9", {"process": 9, "in_memory": True})
    child_notes.claim(str(family.folder), "10", {"process": 10, "recording": "10.ktrace"})
    (family.folder / "10.ktrace").write_bytes(b"PK\x03\x04 but nothing more")
    damaged, killed, no_room = sorted(
        family.join("a").notes, key=lambda note: ("10.ktrace" not in note, note)
    )
    assert damaged.startswith("1 process could not be recorded: ")
    assert killed.startswith("1 process could not be recorded: it was killed")
    assert no_room == "2 processes could not be recorded: no room"


def test_a_child_that_still_runs_keeps_its_file(family):
    ticks = child_notes.began(os.getppid())
    running = {"began_ticks": ticks, "ended": None, "name": "server"}
    family.child(os.getppid(), "b", note=running)
    # The number is used again: this one is over.
    family.child(1, "c", note={"began_ticks": 5, "ended": None, "name": "older"})
    joined = family.join("a")
    assert [row.partition(" ")[2].partition(" ")[2] for row in shown(joined.trace)[1:]] == [
        "killed, crashed or became another program",
        "still ran",
    ]
    assert joined.notes == (
        "1 process still runs: recorded up to now; what comes goes into a file in run.children",
    )
    family.children.clear()
    assert sorted(path.suffix for path in family.folder.iterdir()) == [".json", ".ktrace"]


def test_numbers_that_were_used_again_do_not_hide_a_process(family):
    family.child(7, "b", note={"ancestors": [8]})
    family.child(8, "c", note={"ancestors": [7]})
    assert sorted(shown(family.join("a").trace)) == [
        "python 7 exit code 0",
        "python 8 exit code 0",
        f"train.py {OURS}",
    ]


def test_the_line_that_is_shown_meanwhile_counts_them(family, capfd, monkeypatch):
    for name in ("7", "9-rank1"):
        (family.folder / f"{name}.recording").write_bytes(b"")
    line = ProgressLine(family.wanted.live_path, "run.recording", family.children)
    monkeypatch.setattr("sys.__stderr__.isatty", lambda: True, raising=False)
    line.begin("native")
    line.end()
    assert capfd.readouterr().err.splitlines()[0] == (
        "kinetoscope: recording to run.recording (native engine), and 2 children"
    )


@pytest.mark.parametrize("other", [["--install"], ["--engine", "kineto"]], ids=["install", "kineto"])
def test_children_record_with_our_recorder_from_their_beginning(call, tmp_path, other):
    ended = call("run", "--children", *other, tmp_path / "train.py")
    assert ended.exit_code == 1
    assert f"--children with {' '.join(other)}" in ended.output


def test_a_folder_that_holds_something_else_is_an_error(tmp_path, family):

    child_places.prepare(family.folder, family.wanted)
    child_places.stop_following(family.folder)
    (family.folder / "12.recording").write_text("of a run that was killed")
    child_places.prepare(family.folder, family.wanted)
    assert sorted(path.name for path in family.folder.iterdir()) == ["python", "run.wanted"]
    assert json.loads((family.folder / "run.wanted").read_text())["engine"] == "auto"
    (family.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ArgumentError, match="holds something else"):
        child_places.prepare(family.folder, family.wanted)
    with pytest.raises(ArgumentError, match="PYTHONPATH could not name it"):
        child_places.prepare(tmp_path / "a:b", family.wanted)


def test_what_was_asked_for_reaches_the_children(tmp_path):

    wanted = Wanted(prefix=tmp_path / "run", shapes=True, ring_bytes=1 << 20, steps=(2, None), stack=False)
    child_places.prepare(wanted.children_folder, wanted)
    read = child_places.read_wanted(wanted.children_folder)
    told = ("shapes", "memory", "stack", "modules", "engine", "ring_bytes", "steps")
    assert {name: getattr(read, name) for name in told} == {name: getattr(wanted, name) for name in told}


def test_a_folder_that_others_could_put_something_into_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "place" / "run.children"
    wanted = Wanted(prefix=folder.parent / "run")
    folder.parent.mkdir()

    def refused(match):
        with pytest.raises(ArgumentError, match=match):
            child_places.prepare(folder, wanted)
        assert not (folder / "python" / "sitecustomize.py").exists()

    folder.mkdir()
    ours = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: ours + 1)
    refused("somebody else's")
    monkeypatch.undo()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    refused("is a link")
    folder.unlink()
    folder.parent.chmod(0o777)
    refused("everybody can replace")
    assert not folder.exists()
    folder.parent.chmod(0o1777)
    child_places.prepare(folder, wanted)
    assert folder.stat().st_mode & 0o777 == 0o700
