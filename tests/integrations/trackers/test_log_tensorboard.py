"""TensorBoard's own reader finds what was logged."""

import warnings

import pytest

import kinetoscope

pytest.importorskip("torch", reason="recording needs PyTorch")
reader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="TensorBoard is not installed: run `make trackers`",
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.utils.tensorboard import SummaryWriter


def test_scalars_and_texts_are_in_the_events(recorded, incident, tmp_path):
    with SummaryWriter(tmp_path / "board") as writer:
        assert kinetoscope.log_to_tracker(recorded, writer, name="first") == ["tensorboard"]
        assert kinetoscope.log_to_tracker(incident, writer) == ["tensorboard"]
    events = reader.EventAccumulator(str(tmp_path / "board")).Reload()
    (first, *_) = events.Scalars("kinetoscope/step_ms")
    assert first.step == 5
    assert first.value > 0
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]
    }
    assert texts["kinetoscope/findings/text_summary"].startswith("### first")
    assert "loss went up" in texts["kinetoscope/incident/text_summary"]
    with kinetoscope.open(tmp_path / "board" / "kinetoscope" / "first" / "first.ktrace") as trace:
        assert trace.table("steps").num_rows == recorded.table("steps").num_rows
