"""Losses have codes that stay the same: one catalogue, which every maker and every reader knows."""

import json
import re
from pathlib import Path

import pytest

import kinetoscope
import kinetoscope._core as _core
from kinetoscope.combine.device import join_device
from kinetoscope.combine.extend import extend
from kinetoscope.combine.processes import merge_processes
from kinetoscope.formats.chrome.read import new_reader
from kinetoscope.model.losses import (
    CODES,
    NOT_STOPPED,
    TOLD_AT_STOP,
    UNFINISHED_SPANS,
    Loss,
    consequence,
    counted_losses,
    effects,
    inexact,
    loss_columns,
    losses_of,
)
from kinetoscope.trace import Trace
from tests.support.kineto_text import op, opened
from tests.support.recording_builder import RecordingBuilder
from tests.support.trace_builder import TraceBuilder

ROOT = Path(__file__).parents[2]


def native_codes(tmp_path) -> set[str]:
    """What the two native readers can count."""
    recording = _core.read_recording(str(RecordingBuilder().write(tmp_path / "recording")))
    reader = new_reader()
    reader.feed(b"[]")
    return {*recording["losses"], *reader.finish()["losses"]}


def test_codes_are_snake_case_and_have_words_of_their_own():
    assert [code for code in CODES if not re.fullmatch(r"[a-z]+(_[a-z]+)+", code)] == []
    assert len(set(CODES.values())) == len(CODES)
    for code, (what, where, affects, why) in CODES.items():
        assert what, code
        assert where, code
        assert affects == ", ".join(effects([code])), code
        assert why.endswith("."), code


def test_every_maker_gives_a_known_code_and_every_code_has_a_maker(tmp_path):
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    made = {code for text in sources for code in re.findall(r'Loss\.of\(\s*"(\w+)"', text)}
    made |= {NOT_STOPPED, *TOLD_AT_STOP, *native_codes(tmp_path)}
    assert made <= set(CODES)
    # The others are counted by readers in Python.
    counted = [code for code in CODES if code not in made]
    assert [code for code in counted if not any(f'"{code}"' in text for text in sources)] == []


def test_what_a_reader_counts_is_a_row_with_its_code_and_words(tmp_path):
    builder = TraceBuilder().span("aten::add", 0, 5).killed()
    counted = native_codes(tmp_path)
    for code in sorted(counted):
        builder.lose(code, 30)
    trace = builder.know("recorder_faults", 2).know("call_threads_lost", 1).build()
    expected = dict.fromkeys(counted, 30) | {NOT_STOPPED: 1, "recorder_faults": 2, "call_threads_lost": 1}
    assert {loss["code"]: loss["count"] for loss in trace.losses} == expected
    for loss in trace.losses:
        words = CODES[loss["code"]]
        assert (loss["what"], loss["where"], loss["why"]) == (words.what, words.where, words.why)


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        (["dropped_spans", "truncated_strings"], "times and counts are lower bounds"),
        (["snapshot_without_history"], "memory is a lower bound"),
        (["devices_not_recorded"], "device times and device counts are lower bounds"),
        (["truncated_file"], "times, counts and memory are lower bounds"),
        (["uncompared_clocks"], "times across clocks may be wrong"),
        (
            ["contradictory_clock", "negative_durations"],
            "times are lower bounds; times across clocks may be wrong",
        ),
        (["snapshot_lacks_spans", "nsight_lacks_torch", "nsight_graphs", "text_after_end"], ""),
        (["eaten_by_mice"], "times, counts and memory are lower bounds"),
        ([], ""),
    ],
)
def test_each_loss_says_which_numbers_it_makes_too_small(codes, sentence):
    assert consequence(codes) == sentence


def test_numbers_that_are_not_exact_have_their_causes():
    builder = TraceBuilder().span("aten::add", 0, 5).lose("dropped_spans", 7).lose("truncated_strings", 2)
    assert inexact(builder.build().losses) == "times and counts are lower bounds: spans not written (7)"
    assert inexact(TraceBuilder().span("aten::add", 0, 5).lose("truncated_strings", 2).build().losses) == ""


def test_pauses_ranks_and_devices_give_codes():
    pause = {"activity": "CPU", "from_realtime_ns": 0, "to_realtime_ns": 5_000_000}
    paused = TraceBuilder().span("aten::add", 0, 5).know("pauses", [pause]).build()
    assert [(loss["code"], loss["where"]) for loss in paused.losses] == [("collection_paused", "CPU")]
    ranks = merge_processes([paused, TraceBuilder().span("aten::add", 0, 5).know("process", 2).build()])
    assert [loss["code"] for loss in ranks.losses] == ["collection_paused", "uncompared_clocks"]
    device = TraceBuilder().build()
    del device.info["start_realtime_ns"]
    joined = join_device(paused, device)
    assert [loss["code"] for loss in joined.losses] == ["collection_paused", "device_clock_unknown"]


def test_a_loss_without_a_code_of_the_catalogue_cannot_be_made():
    with pytest.raises(KeyError):
        Loss.of("eaten_by_mice")


def test_losses_are_taken_away_by_their_code():
    trace = TraceBuilder().span("aten::add", 0, 5, unfinished=True).killed().build()
    other = Loss(CODES[NOT_STOPPED].what, 1, "elsewhere", "It has the sentence, and no code.", "")
    made = extend(extend(trace, losses=[other]), without_losses=(NOT_STOPPED,))
    assert [(loss["code"], loss["where"]) for loss in made.losses] == [
        (UNFINISHED_SPANS, "spans"),
        ("", "elsewhere"),
    ]
    assert losses_of(loss_columns([other])) == [other]


@pytest.mark.parametrize("suffix", [".ktrace", ".tables", ".json"])
def test_codes_are_kept_by_files(tmp_path, suffix):
    trace = TraceBuilder().span("aten::add", 0, 5).lose("dropped_spans", 7).build()
    trace.save(tmp_path / f"x{suffix}")
    with kinetoscope.open(tmp_path / f"x{suffix}") as again:
        assert again.losses == trace.losses
        assert again.table("losses").to_pylist() == [
            loss | {"affects": "times, counts"} for loss in trace.losses
        ]


def test_losses_without_codes_have_the_empty_one_wherever_they_go():
    columns = loss_columns([Loss.of("dropped_spans", 7)])
    del columns["code"]
    old = Trace.from_columns({"losses": columns}, strings=[""])
    (expected,) = losses_of(columns | {"code": [""]})
    assert losses_of(old.columns("losses")) == [expected]
    assert [loss["code"] for loss in extend(old, losses=[Loss.of("source_failed")]).losses] == [
        "",
        "source_failed",
    ]
    told = [{name: values[0] for name, values in columns.items()}]
    trace = opened(op("a", 0, 1), header={"losses": json.loads(json.dumps(told))})
    assert losses_of(trace.columns("losses")) == [expected]


def test_what_a_newer_reader_counts_is_a_loss_too():
    (loss,) = counted_losses({"eaten_by_mice": 3, "dropped_spans": 0})
    assert (loss.what, loss.count, loss.code) == ("eaten by mice", 3, "eaten_by_mice")
