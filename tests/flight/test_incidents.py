"""The folder of incidents."""

import json
import os

from kinetoscope.flight.incidents import Incidents, incident_folders, rank_name, time_of

BEGIN_S = 1_800_000_000.0


class Clock:
    """The system's clock, turned by hand."""

    def __init__(self):
        self.now_s = BEGIN_S

    def __call__(self):
        return self.now_s


def copy(path):
    path.write_bytes(b"ring")


def test_an_incident_is_a_recording_and_its_reason(tmp_path):
    path = Incidents(tmp_path, 3, 6, Clock()).write("hang", {"step": 17}, copy)
    assert path.read_bytes() == b"ring"
    assert path.name == f"{rank_name(3)}.recording"
    told = json.loads(path.with_suffix(".json").read_text())
    assert told == {"reason": "hang", "rank": 3, "time_s": BEGIN_S, "step": 17}
    assert incident_folders(tmp_path) == [path.parent]
    assert time_of(path.parent) == BEGIN_S


def test_ranks_that_fail_together_share_a_folder(tmp_path):
    clock = Clock()
    first = Incidents(tmp_path, 0, 6, clock).write("hang", {}, copy)
    clock.now_s += 40
    second = Incidents(tmp_path, 1, 6, clock).write("hang", {}, copy)
    assert first.parent == second.parent
    clock.now_s += 400
    assert Incidents(tmp_path, 2, 6, clock).write("hang", {}, copy).parent != first.parent


def test_other_reasons_and_second_incidents_have_folders_of_their_own(tmp_path):
    clock = Clock()
    incidents = Incidents(tmp_path, 0, 6, clock)
    paths = [incidents.write(reason, {}, copy) for reason in ("nan", "crash", "nan", "nan")]
    assert len({path.parent for path in paths}) == 4


def test_no_more_than_the_limit_in_an_hour(tmp_path):
    clock = Clock()
    incidents = Incidents(tmp_path, 0, 2, clock)
    made = []
    for _ in range(4):
        made.append(incidents.write("slow", {}, copy))
        clock.now_s += 1000
    assert [path is not None for path in made] == [True, True, False, False]
    assert incidents.refused == 2
    assert incidents.write("look", {}, copy, asked=True) is not None
    clock.now_s += 600
    assert incidents.write("slow", {}, copy) is not None


def test_the_first_incident_is_never_removed(tmp_path):
    clock = Clock()
    incidents = Incidents(tmp_path, 0, 1000, clock)
    paths = []
    for _ in range(30):
        paths.append(incidents.write("slow", {}, copy))
        clock.now_s += 200
    left = incident_folders(tmp_path)
    assert len(left) == 24
    assert left == [paths[0].parent, *(path.parent for path in paths[-23:])]


def test_incidents_and_captures_stay_within_one_size_but_the_first_and_the_newest(tmp_path):
    clock = Clock()
    (tmp_path / "rank0.recording").write_bytes(b"ring")
    incidents = Incidents(tmp_path, 0, 1000, clock, most_bytes=3.5 * (1 << 20))
    (tmp_path / "captures").mkdir()
    paths = []
    for number in range(8):
        clock.now_s += 200
        path = incidents.new_capture(number) if number % 2 else tmp_path
        if number % 2:
            path.write_bytes(bytes(1 << 20))
        else:
            path = incidents.write("slow", {}, lambda path: path.write_bytes(bytes(1 << 20)))
        paths.append(path)
        os.utime(path if number % 2 else path.parent, (number, number))
        incidents.sweep()
    # The first incident, and the last three of both kinds.
    assert [path.exists() for path in paths] == [True, *[False] * 4, *[True] * 3]


def test_a_reason_is_kept_even_if_the_ring_cannot_be_copied(tmp_path):
    def fails(path):
        raise OSError("no space left")

    path = Incidents(tmp_path, 0, 6, Clock()).write("it broke: why?", {}, fails)
    assert not path.exists()
    assert json.loads(path.with_suffix(".json").read_text())["copy_failed"] == "OSError: no space left"
    assert path.parent.name.endswith("-it-broke--why")
