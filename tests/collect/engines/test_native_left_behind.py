"""The temporary recordings that killed sessions leave behind."""

import os

from kinetoscope.collect.engines.native import remove_left_behind

NOW_S = 1_800_000_000.0
NOBODY = 1 << 22


def leave(folder, name, age_days):
    place = folder / name
    place.mkdir()
    path = place / "live.recording"
    path.write_bytes(b"recording")
    os.utime(path, (NOW_S, NOW_S - age_days * 86400))
    return place


def test_only_recordings_of_killed_sessions_go_and_only_after_two_weeks(tmp_path):
    old = leave(tmp_path, f"kinetoscope-{NOBODY + 1}-ab_12xyz", 15)
    empty = tmp_path / f"kinetoscope-{NOBODY + 1}-ab_12xy0"
    empty.mkdir()
    os.utime(empty, (NOW_S, NOW_S - 15 * 86400))
    stays = [
        leave(tmp_path, f"kinetoscope-{NOBODY + 1}-ab_34xyz", 13),
        leave(tmp_path, f"kinetoscope-{os.getpid()}-ab_12xyz", 15),
        leave(tmp_path, "kinetoscope-mine", 15),
        leave(tmp_path, "kinetoscope-1000", 15),
    ]
    kept = leave(tmp_path, f"kinetoscope-{NOBODY + 1}-ab_56xyz", 15)
    (kept / "notes").write_text("of the user")
    remove_left_behind(tmp_path, NOW_S)
    assert not old.exists()
    assert not empty.exists()
    assert all((place / "live.recording").exists() for place in stays)
    assert (kept / "notes").exists()
