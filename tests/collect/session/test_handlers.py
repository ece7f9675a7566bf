import json
import os
import re

import pytest

from kinetoscope import StateError, tensorboard_trace_handler


class Exporter:
    """A session that only exports."""

    def export_chrome_trace(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({}, file)


@pytest.mark.parametrize(("use_gzip", "suffix"), [(False, "json"), (True, r"json\.gz")])
def test_files_are_named_after_worker_and_time(tmp_path, use_gzip, suffix):
    handler = tensorboard_trace_handler(tmp_path / "a" / "b", worker_name="worker7", use_gzip=use_gzip)
    assert not (tmp_path / "a").exists()
    for _ in range(3):
        handler(Exporter())
    names = os.listdir(tmp_path / "a" / "b")
    assert len(names) == 3
    assert all(re.fullmatch(rf"worker7\.\d+\.pt\.trace\.{suffix}", name) for name in names)


def test_the_default_worker_is_read_when_the_file_is_written(tmp_path, monkeypatch):
    handler = tensorboard_trace_handler(str(tmp_path))
    for process in (111, 222):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        handler(Exporter())
    assert sorted(name.split(".")[0].rpartition("_")[2] for name in os.listdir(tmp_path)) == ["111", "222"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be created"):
        tensorboard_trace_handler(tmp_path / "file" / "logs")(Exporter())
