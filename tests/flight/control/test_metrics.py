"""Metrics in the text format of Prometheus."""

import re

from kinetoscope.flight.control.answers import ControlledRank, outside_status
from kinetoscope.flight.control.metrics import metrics_text
from kinetoscope.flight.step_log import LoggedStep, StepLog

LOG = StepLog(
    process=77,
    stopped=False,
    number=11,
    began_ns=1,
    recorded=True,
    hang_ns=0,
    most_bytes=0,
    is_of_here=True,
    hung=False,
    steps=tuple(LoggedStep(number, number, (number + 1) * 1_000_000, True) for number in range(11)),
    memory=((5, 4096),),
)
LINE = re.compile(r'kinetoscope_\w+\{(\w+="(\\.|[^"\\])*",?)+\} -?[\d.e-]+')


def test_what_is_known_has_a_value_and_what_is_unknown_is_missing():
    rank = ControlledRank(77, 'a "job"\\', "0", 3, "/jobs/a/0", "log", "ring")
    lines = metrics_text(outside_status(rank, LOG, "runs"), LOG).splitlines()
    labels = r'job="a \"job\"\\",attempt="0",rank="3"'
    assert f"kinetoscope_step{{{labels}}} 11" in lines
    assert f"kinetoscope_answered{{{labels}}} 0" in lines
    assert f'kinetoscope_step_duration_seconds{{{labels},quantile="0.5"}} 0.006' in lines
    assert f'kinetoscope_step_duration_seconds{{{labels},quantile="0.99"}} 0.011' in lines
    assert f"kinetoscope_resident_memory_bytes{{{labels}}} 4096" in lines
    assert not any("overhead" in line or "incidents" in line for line in lines)


def test_each_metric_has_a_name_with_its_unit_a_help_and_a_type():
    rank = ControlledRank(77, "train", "0", 0, "/jobs/a/0", "log", "ring")
    told = {
        "recorded_percent": 50.0,
        "budget_percent": 1.0,
        "overhead_percent": 0.6,
        "overhead_low_percent": 0.4,
        "overhead_high_percent": 0.8,
        "incidents": ["one"],
        "refused": 2,
        "capture": None,
    }
    text = metrics_text(outside_status(rank, LOG, "hangs") | told, LOG)
    helped, typed = (
        re.findall(rf"^# {kind} (kinetoscope_\w+) ", text, re.MULTILINE) for kind in ("HELP", "TYPE")
    )
    assert helped == typed
    assert len(set(typed)) == len(typed) == 14
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in values)
    assert {line.partition("{")[0] for line in values} == set(typed)
    assert 'kinetoscope_overhead_ratio{job="train",attempt="0",rank="0"} 0.006' in values
    assert 'kinetoscope_hangs{job="train",attempt="0",rank="0"} 1' in values
