"""`kinetoscope history`."""

import pytest

from tests.cli.conftest import training_trace
from tests.support.strict_json import read_strictly


@pytest.fixture
def builds(tmp_path, call):
    """Nine builds: seven traces, a folder with a summary, and the JSON of a comparison; from the fifth on with one more operator."""
    folder = tmp_path / "builds"
    folder.mkdir()
    for number in range(1, 9):
        builder = training_trace()
        if number >= 5:
            builder.span("aten::relu", 14_200_000, 100_000)
        path = folder / f"build-{number}.ktrace"
        builder.build().save(path)
    done = call("compare", str(folder / "build-1.ktrace"), str(folder / "build-8.ktrace"), "--json")
    (folder / "build-9.json").write_text(done.stdout)
    assert call("summarize", str(folder / "build-8.ktrace"), "-o", str(folder / "build-10")).exit_code == 0
    (folder / "notes.txt").write_text("not a build")
    (folder / "empty").mkdir()
    return folder


def test_builds_of_any_kind_are_ordered(call, builds):
    page = builds.parent / "history.html"
    done = call("history", builds, "--json", "--html", page)
    assert done.exit_code == 0, done.stderr
    values = read_strictly(done.stdout)
    names = [f"build-{number}.ktrace" for number in range(1, 9)]
    assert [one["name"] for one in values["builds"]] == [*names, "build-9.json", "build-10"]
    assert values["order"] == "name"
    assert [build["values"]["operators"] for build in values["builds"][:9]] == [4] * 4 + [5] * 5
    assert values["builds"][-1]["values"]["step_ns"] > 0
    assert "build-5.ktrace" in page.read_text("utf-8")


def test_a_series_is_chosen(call, builds):
    done = call("history", builds, "--series", "allocations")
    assert done.exit_code == 0
    assert "allocations" in done.stdout
    assert "time of a step" not in done.stdout


def test_a_folder_without_builds_is_one_line(call, tmp_path):
    done = call("history", tmp_path)
    assert done.exit_code == 1
    assert "0 builds cannot be compared" in done.stderr
