"""W&B offline: what the run's file has, by W&B's own reader."""

import json
import struct
from pathlib import Path

import pytest

import kinetoscope

pytest.importorskip("torch", reason="recording needs PyTorch")
wandb = pytest.importorskip("wandb", reason="W&B is not installed: run `make trackers`")


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """An active run that is not sent anywhere."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    started = wandb.init(mode="offline", project="profiles", dir=str(tmp_path))
    yield started
    started.finish()


def records(run):
    """The records of the file of a run that has ended: a log of LevelDB, of blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    # The process that writes it goes on after the run has ended.
    wandb.teardown()
    content = Path(run.settings.sync_file).read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(content):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        # Whole, or the last part of one.
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def rows(found):
    """The rows of the history, as objects."""
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_panels_scalars_and_an_artifact_do_not_move_the_steps_of_the_job(run, recorded):
    run.log({"loss": 1.0}, step=3)
    assert kinetoscope.log_to_tracker(recorded, name="first") == ["wandb"]
    run.log({"loss": 0.5}, step=4)
    run.finish()
    found = list(records(run))
    merged = {}
    for row in rows(found):
        merged.setdefault(row["_step"], {}).update(row)
    assert [merged[3]["loss"], merged[4]["loss"]] == [1.0, 0.5]
    (at,) = [step for step, row in merged.items() if "kinetoscope/step_ms" in row]
    assert at in (3, 4)
    row = merged[at]
    assert row["kinetoscope/report._type"] == "html-file"
    assert row["kinetoscope/modules._type"] == "table-file"
    (artifact,) = [
        record.artifact or record.request.log_artifact.artifact
        for record in found
        if record.WhichOneof("record_type") == "artifact" and record.artifact.type == "profile"
    ]
    assert artifact.name == "kinetoscope-first"
    paths = {entry.path for entry in artifact.manifest.contents}
    assert not paths or paths == {"first.ktrace", "report.html"}


def test_an_incident_is_an_alert_and_in_the_summary(run, incident):
    assert kinetoscope.log_to_tracker(incident) == ["wandb"]
    assert run.summary["kinetoscope/incident"] == "loss went up"
    assert run.summary["kinetoscope/incident_recording"] == str(incident)
    run.finish()
    (alert,) = [record.alert for record in records(run) if record.WhichOneof("record_type") == "alert"]
    assert alert.title.startswith("Kinetoscope: loss went up")
    assert str(incident) in alert.text


def test_a_run_that_has_ended_is_not_active(recorded):
    assert wandb.run is None
    with pytest.raises(kinetoscope.StateError):
        kinetoscope.log_to_tracker(recorded)
