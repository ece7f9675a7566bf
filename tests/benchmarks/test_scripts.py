"""Every benchmark runs, at tiny sizes, and reports results."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import SCRIPTS
from benchmarks.floor import FLOOR, against_the_floor
from benchmarks.harness import BASELINE, NULL_CONTROL, Times, interleave, ratio_result
from tests.support import warm_python
from tests.support.effort import STRESS

ROOT = Path(__file__).parents[2]


# The others take half a minute, and only developers run them: `make stress` tries them all.
@pytest.mark.parametrize("script", SCRIPTS if STRESS else ("stop_cost", "table_cost", "overhead_estimate"))
def test_a_benchmark_says_what_it_measured_and_whether_that_meets_its_bar(script, tmp_path):
    results = tmp_path / "results.json"
    done = warm_python.run("-m", f"benchmarks.{script}", "--quick", "--json", results, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text(encoding="utf-8"))
    assert rows
    for row in rows:
        assert row["what"] in done.stdout
        assert row["measured"] in done.stdout
        assert row["meets"] in (True, False) or row["target"] == "none"


def test_every_script_is_run_by_the_module():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    helpers = {
        "__init__",
        "__main__",
        "harness",
        "judgements",
        "workloads",
        "floor",
        "big_traces",
        "blind_sources",
        "device_sources",
        "dense_traces",
        "one_reading",
    }
    assert scripts - helpers == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_finds_what_it_imports(script):
    importlib.import_module(f"benchmarks.{script}")


def test_an_unknown_benchmark_is_refused():
    done = warm_python.run("-m", "benchmarks", "nothing", cwd=ROOT)
    assert done.returncode == 2
    assert "unknown benchmark nothing" in done.stderr


def test_slices_take_turns_and_every_piece_is_timed():
    order = []

    class Noting:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            order.append(self.name)

        def __exit__(self, *_):
            return None

    times = interleave(lambda: None, {"a": lambda: Noting("a"), "b": lambda: Noting("b")}, rounds=3, pieces=4)
    assert list(times) == [BASELINE, NULL_CONTROL, "a", "b"]
    assert sorted(order[:2]) == sorted(order[2:4]) == sorted(order[4:]) == ["a", "b"]
    assert {len(measured.cpu_ns) for measured in times.values()} == {12}


def test_a_ratio_is_of_what_is_added_and_not_of_the_whole():
    def all_of(value_ns):
        return Times(wall_ns=[value_ns] * 3, cpu_ns=[value_ns] * 3)

    times = {BASELINE: all_of(100), "ours": all_of(110), "theirs": all_of(140)}
    result = ratio_result("what", 0.5, times, "ours", "theirs")
    assert result.measured == "0.25 x (0.25 to 0.25)"
    assert result.meets


def test_a_ratio_above_a_floor_leaves_the_floor_out():
    def all_of(value_ns):
        return Times(wall_ns=[value_ns] * 3, cpu_ns=[value_ns] * 3)

    times = {BASELINE: all_of(100), FLOOR: all_of(120), "ours": all_of(130), "theirs": all_of(160)}
    floor, above = against_the_floor("what", times, "ours", "theirs")
    assert (floor.measured, above.measured) == ("0.33 x (0.33 to 0.33)", "0.25 x (0.25 to 0.25)")
