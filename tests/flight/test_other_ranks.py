"""An incident of one rank is one of all: through a folder, through the job's store, and of ranks that do not answer."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.flight.incidents import Incidents
from kinetoscope.flight.other_ranks import OtherRanks
from kinetoscope.storage.incident_files import SUMMARY
from tests.support import warm_python

PROGRAM = Path(__file__).with_name("answering_rank.py")
PATIENCE_S = 60.0


def wait_for(condition):
    """Waits until a condition holds, and returns what it returned."""
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, "it did not happen"
        threading.Event().wait(0.02)
    return found


class Rank:
    """A process that is left on, and does what it is told, one line at a time."""

    def __init__(self, rank, ranks, folder, port=0):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "job",
            "KINETOSCOPE_DIR": str(folder),
        }
        self.folder = folder / "job" / "0"
        self.process = warm_python.start(PROGRAM, env=environment)

    def ready(self):
        assert self.process.stdout.readline() == "ready\n"

    def do(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def incidents(self):
        """What each file of an incident says, by its folder and name."""
        found = sorted(self.folder.glob("incidents/*/*.json"))
        return {
            f"{path.parent.name.partition('-')[2]}/{path.name}": json.loads(path.read_text())
            for path in found
        }

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.close()


@contextmanager
def job(folders, *, distributed=False):
    """Ranks, each with the folder of its machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1] if distributed else 0
    ranks = [Rank(rank, len(folders), folder, port) for rank, folder in enumerate(folders)]
    try:
        for rank in ranks:
            rank.ready()
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def test_ranks_of_one_machine_copy_their_rings_into_one_folder(tmp_path):
    with job([tmp_path] * 3) as ranks:
        for rank in ranks:
            assert rank.do("step") == "1"
        ranks[1].do("nan")
        found = wait_for(lambda: len(known := ranks[0].incidents()) == 4 and known)
        assert sorted(found) == ["nan/incident.json", "nan/rank0.json", "nan/rank1.json", "nan/rank2.json"]
        assert "loss of step 1" in found["nan/rank1.json"]["what"]
        assert found["nan/rank0.json"]["because_of_rank"] == 1
        summary = found["nan/incident.json"]
        assert (summary["reason"], summary["rank"], summary["missing"]) == ("nan", 1, [])
        assert [summary["ranks"][rank]["answered"] for rank in "012"] == [True] * 3
        # The recordings are one trace, which says what happened.
        (place,) = (ranks[0].folder / "incidents").iterdir()
        with kinetoscope.open(place) as trace:
            assert [row["rank"] for row in trace.table("processes").to_pylist()] == [0, 1, 2]
            incident = trace.info["incident"]
            assert (incident["reason"], incident["rank"], incident["step"]) == ("nan", 1, 1)
        assert all(rank.do("stop") == "stopped" for rank in ranks)
        assert not list(ranks[0].folder.glob("rank*"))


def test_ranks_of_other_machines_are_told_by_the_store_of_the_job(tmp_path):
    folders = [tmp_path / name for name in ("here", "there")]
    with job(folders, distributed=True) as ranks:
        for rank in ranks:
            assert rank.do("step") == "1"
        ranks[0].do("nan")
        theirs = wait_for(ranks[1].incidents)
        assert theirs["nan/rank1.json"]["because_of_rank"] == 0
        assert "loss of step 1" in theirs["nan/rank1.json"]["what"]
        listed = wait_for(lambda: ranks[0].incidents().get("nan/incident.json"))
        assert listed["ranks"]["1"]["host"] == socket.gethostname()
        assert listed["ranks"]["1"]["path"].startswith(str(folders[1]))
        assert listed["missing"] == []


def test_the_ring_of_a_rank_that_does_not_answer_is_copied_from_outside(tmp_path):
    with job([tmp_path] * 2) as ranks:
        for rank in ranks:
            assert rank.do("step") == "1"
        ranks[1].process.send_signal(signal.SIGSTOP)
        ranks[0].do("nan")
        found = wait_for(lambda: ranks[0].incidents().get("nan/incident.json"))
        assert found["ranks"]["1"] == {"answered": False, "recording": "rank1.recording"}
        facts = ranks[0].incidents()["nan/rank1.json"]
        assert (facts["step"], facts["answered"]) == (1, False)
        assert facts["what"] == "it did not answer: rank 0 copied its ring"
        (place,) = (ranks[0].folder / "incidents").iterdir()
        with kinetoscope.open(place / "rank1.recording") as trace:
            assert 0 in trace.column("steps", "number")


def test_a_rank_of_which_there_is_nothing_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    incidents = Incidents(tmp_path, 0, 6)
    others = OtherRanks(tmp_path, 0, lambda name, facts: pytest.fail("followed"), answer_s=0.0)
    others.start()
    path = incidents.write("slow", {"what": "slow steps"}, lambda path: path.write_bytes(b""))
    others.tell(path)
    others.stop()
    summary = json.loads((path.parent / SUMMARY).read_text())
    assert summary["missing"] == [1]
    assert summary["what"] == "slow steps"


def test_incidents_of_before_are_not_followed_and_a_failure_is_tried_again(tmp_path):
    Incidents(tmp_path, 1, 6).write("old", {}, lambda path: path.write_bytes(b""))
    followed = []

    def follow(name, facts):
        followed.append((name.partition("-")[2], facts["what"]))
        raise OSError("disk full")

    others = OtherRanks(tmp_path, 0, follow, look_s=0.01)
    others.start()
    Incidents(tmp_path, 1, 6).write("slow", {"what": "slow steps"}, lambda path: path.write_bytes(b""))
    wait_for(lambda: followed)
    others.stop()
    assert followed == [("slow", "slow steps")]
