import re

import pytest

from kinetoscope.analyses.health import judged

FACTS = {
    "not_stopped": 0,
    "running": False,
    "losses": {"kinds": 0, "affects": [], "consequence": ""},
    "spans": 1000,
    "allocations": 0,
    "unfinished": 0,
    "overlapping": 0,
    "launches": None,
    "clock": None,
    "processes": {"count": 1, "unknown_clocks": 0, "largest_error_ns": 0},
    "overhead": {"spans": 0, "time_ns": 0, "duration_ns": 1_000_000},
    "covered_percent": None,
}
LAUNCHES = {"work": 1000, "tied": 1000, "calls": 1000, "without_work": 0, "early": 0, "earliest_ns": 0}


def check(title, **facts):
    (found,) = [one for one in judged({**FACTS, **facts})["checks"] if one["title"] == title]
    return found


def text(said):
    values = iter(said["values"])
    return re.sub(r"\{\}", lambda _: "{:g}{}".format(*next(values)), said["text"])


def test_a_good_trace_has_good_checks_only():
    found = judged({**FACTS, "launches": LAUNCHES, "clock": {"readings": 3}, "covered_percent": 100.0})
    assert {one["state"] for one in found["checks"]} == {"good"}
    assert (found["state"], text(found["line"])) == ("good", "Nothing is missing")


def test_an_empty_trace_is_said_to_be_empty():
    found = judged({**FACTS, "spans": 0})
    assert (found["state"], text(found["line"])) == ("note", "The trace is empty")


def test_the_line_is_the_first_warning_and_how_many_more_there_are():
    lost = {"kinds": 2, "affects": ["times", "names"], "consequence": "times are lower bounds"}
    assert text(judged({**FACTS, "losses": lost})["line"]) == "Times are lower bounds"
    assert (
        text(judged({**FACTS, "losses": lost, "not_stopped": 1})["line"])
        == "The recording was not stopped, 1 more warning"
    )
    launches = {**LAUNCHES, "tied": 900}
    found = judged({**FACTS, "losses": lost, "not_stopped": 1, "launches": launches})
    assert text(found["line"]) == "The recording was not stopped, 2 more warnings"


def test_losses_that_leave_numbers_exact_are_a_note():
    lost = {"kinds": 2, "affects": ["operators", "lines"], "consequence": ""}
    found = check("Losses", losses=lost)
    assert (found["state"], text(found["finding"])) == ("note", "Not complete: operators and lines")
    assert text(found["meaning"]).startswith("Other numbers are exact.")
    (state, line) = (judged({**FACTS, "losses": lost})[key] for key in ("state", "line"))
    assert (state, text(line)) == ("note", "Not complete: operators and lines")


def test_a_trace_of_allocations_alone_is_not_empty():
    found = judged({**FACTS, "spans": 0, "allocations": 3})
    assert text(found["line"]) == "Nothing is missing"


def test_every_place_has_a_number():
    facts = {
        "not_stopped": 1,
        "losses": {"kinds": 1, "affects": ["times"], "consequence": "times are lower bounds"},
        "unfinished": 5,
        "overlapping": 7,
        "launches": {"work": 9, "tied": 8, "calls": 7, "without_work": 6, "early": 5, "earliest_ns": 4000},
        "clock": {"readings": 3, "largest_error_ns": 2, "device_calls": 9, "device_calls_crossing": 1},
        "processes": {"count": 3, "unknown_clocks": 0, "largest_error_ns": 12},
        "overhead": {"spans": 4, "time_ns": 1000, "duration_ns": 100_000},
        "covered_percent": 50.0,
    }  # fmt: skip
    found = judged({**FACTS, **facts})
    assert len(found["checks"]) == 11
    for said in [found["line"], *(one[key] for one in found["checks"] for key in ("finding", "meaning"))]:
        assert said["text"].count("{}") == len(said["values"])
        assert all(unit in ("", "ns", "%") for _, unit in said["values"])


@pytest.mark.parametrize(("tied", "state"), [(1000, "good"), (995, "note"), (900, "warn")])
def test_launches_are_judged_by_how_many_lack_their_call(tied, state):
    assert check("Launches", launches={**LAUNCHES, "tied": tied})["state"] == state


@pytest.mark.parametrize(
    ("early", "earliest_ns", "state"),
    [(0, 0, "good"), (5, 900, "good"), (5, 9000, "note"), (50, 9000, "warn")],
)
def test_early_work_is_judged_by_how_much_and_how_far(early, earliest_ns, state):
    found = check("Host and device clocks", launches={**LAUNCHES, "early": early, "earliest_ns": earliest_ns})
    assert found["state"] == state


@pytest.mark.parametrize(("time_ns", "state"), [(5_000, "good"), (20_000, "note"), (200_000, "warn")])
def test_overhead_is_judged_by_its_share(time_ns, state):
    overhead = {"spans": 2, "time_ns": time_ns, "duration_ns": 1_000_000}
    assert check("Overhead", overhead=overhead)["state"] == state


def test_clocks_of_processes_that_nobody_knows_are_a_warning():
    found = check("Process clocks", processes={"count": 8, "unknown_clocks": 7, "largest_error_ns": 0})
    assert found["state"] == "warn"
    assert text(found["finding"]) == "The clocks of 7 of 8 processes could not be aligned"


@pytest.mark.parametrize(
    ("error", "told"), [(0, "Checked 3 times, never off"), (2, "Checked 3 times, at most 2ns off")]
)
def test_the_clock_is_told_with_its_error(error, told):
    assert text(check("Clock", clock={"readings": 3, "largest_error_ns": error})["finding"]) == told


def test_what_there_is_one_of_is_said_in_the_singular():
    facts = {
        **FACTS,
        "spans": 1,
        "not_stopped": 1,
        "losses": {"kinds": 1, "affects": ["memory"], "consequence": "memory is a lower bound"},
        "unfinished": 1,
        "overlapping": 1,
        "clock": {"readings": 1, "largest_error_ns": 1, "device_calls": 1, "device_calls_crossing": 0},
        "overhead": {"spans": 1, "time_ns": 1, "duration_ns": 1},
    }
    works = ({"tied": 1, "early": 1}, {"tied": 0, "early": 0}, {"tied": 1, "early": 0})
    crossing = {"readings": 1, "device_calls": 2, "device_calls_crossing": 1}
    said = []
    for work in works:
        one = {"work": 1, "calls": 1, "without_work": 1, "earliest_ns": 9000, **work}
        said += judged({**facts, "launches": one})["checks"]
    said += judged({**facts, "processes": {**FACTS["processes"], "count": 2}, "clock": crossing})["checks"]
    sentences = {text(one[key]) for one in said for key in ("finding", "meaning")}
    assert {
        "Memory is a lower bound",
        "1 of 2 processes was not stopped",
        "1 of 1 span is unfinished",
        "1 span partly overlaps others on its thread",
        "The 1 kernel or copy is linked to its launch",
        "Checked 1 time, never off",
        "1 of 2 runtime calls does not lie within its operator",
    } <= sentences
    # One of several is one, too; only what is counted last is several.
    wrong = re.compile(r"(?<!of )\b1 (?!of )\w*[^s\W]s\b")
    assert [one for one in sentences if wrong.search(one)] == []
