"""`table`, `sql`, `convert` and `info` on a trace built by hand."""

import csv
import io
import json
import re
import subprocess
import sys

import pytest

import kinetoscope
from tests.cli.conftest import training_trace


def rows(text: str) -> list[dict[str, str]]:
    """Reads CSV."""
    return list(csv.DictReader(io.StringIO(text)))


def test_the_operators_are_shown_when_no_table_is_named(call, trace_path):
    shown = call("table", trace_path)
    assert shown.exit_code == 0, shown.stderr
    header, first, *_ = shown.stdout.splitlines()
    assert header.split()[:4] == ["name", "self_ns", "self_percent", "count"]
    assert first.split()[0] == "aten::addmm"
    assert "4 ms" in first


def test_what_takes_longer_to_load_than_a_small_trace_is_not_loaded(trace_path):
    program = (
        "import sys; from kinetoscope.cli import main\n"
        "for line in ('info', 'table ops', 'table spans', 'table memory', 'findings', 'report --text'):\n"
        "    command, *more = line.split()\n"
        f"    main([command, {str(trace_path)!r}, *more], standalone_mode=False)\n"
        "    print(line, {'pandas', 'pyarrow.compute', 'secrets'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 6
    assert [line for line in done.stderr.splitlines() if not line.endswith("set()")] == []


def test_averages_and_info_of_a_foreign_trace_need_no_pyarrow(tmp_path):
    path = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [event]}))
    program = (
        "import sys, kinetoscope\n"
        f"print(kinetoscope.open({str(path)!r}).key_averages().table())\n"
        "from kinetoscope.cli import main\n"
        f"main(['info', {str(path)!r}], standalone_mode=False)\n"
        "print('pyarrow' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "aten::mm" in done.stdout
    assert "1 span" in done.stdout
    assert done.stderr == "False\n"


def test_csv_has_every_row_and_the_numbers_as_they_are(call, trace_path):
    shown = rows(call("table", trace_path, "spans", "--csv").stdout)
    assert len(shown) == 10
    own = {row["name"]: int(row["self_ns"]) for row in shown}
    assert own["aten::linear"] == 1_000_000
    assert shown[0]["module"] == "fc"
    assert len(rows(call("table", trace_path, "spans", "--csv", "--limit", "3").stdout)) == 3


def test_json_has_every_row_with_the_values_of_the_table(call, trace_path):
    shown = call("table", trace_path, "spans", "--json")
    assert json.loads(shown.stdout) == kinetoscope.open(trace_path).table("spans").to_pylist()
    limited = call("table", trace_path, "spans", "--json", "--limit", 2, "--columns", "name")
    assert json.loads(limited.stdout) == [{"name": "aten::linear"}, {"name": "aten::addmm"}]
    assert json.loads(call("table", trace_path, "losses", "--json").stdout) == []


def test_json_of_a_query_has_null_for_what_json_cannot_express(call, trace_path):
    query = (
        "select 'nan'::double as a, 1.50::decimal(4, 2) as b, 2::hugeint as c, [1, null] as d, 1 as e, 2 as e"
    )
    shown = call("sql", trace_path, query, "--json")
    assert json.loads(shown.stdout) == [
        {"a_0": None, "b_1": 1.5, "c_2": 2, "d_3": [1, None], "e_4": 1, "e_5": 2}
    ]


def test_info_as_json_counts_what_there_is_and_what_is_missing(call, trace_path):
    shown = json.loads(call("info", trace_path, "--json").stdout)
    assert shown["complete"] is True
    assert shown["losses"] == []
    assert shown["counts"]["steps"] == 2
    assert shown["duration_ns"] == kinetoscope.open(trace_path).duration_ns
    assert "train.py --lr 0.1" in shown["facts"]["Program"]
    assert (
        "Program" not in json.loads(call("info", trace_path, "--json", "--no-command-line").stdout)["facts"]
    )


def test_rows_are_sorted_numbers_down_and_text_up(call, trace_path):
    by_size = rows(call("table", trace_path, "spans", "--csv", "--sort", "duration").stdout)
    sizes = [int(row["duration_ns"]) for row in by_size]
    assert sizes == sorted(sizes, reverse=True)
    names = [
        row["name"] for row in rows(call("table", trace_path, "spans", "--csv", "--sort", "name").stdout)
    ]
    assert names == sorted(names)


def test_rows_without_a_value_come_last(call, trace_path):
    shown = rows(call("table", trace_path, "spans", "--csv", "--sort", "module").stdout)
    modules = [row["module"] for row in shown]
    assert modules == sorted(modules, key=lambda module: (module == "", module))
    assert modules[-1] == ""


def test_columns_can_be_chosen_with_or_without_their_unit(call, trace_path):
    shown = call("table", trace_path, "spans", "--columns", "duration, name", "--csv").stdout
    assert shown.splitlines()[0] == '"duration_ns","name"'


def test_tables_are_grouped_and_filtered_as_in_python(call, trace_path):
    shown = rows(
        call("table", trace_path, "ops", "--by", "module", "--where", "name=aten::addmm", "--csv").stdout
    )
    assert [(row["name"], row["place"]) for row in shown] == [("aten::addmm", "fc")]
    names = call(
        "table", trace_path, "spans", "--where", "name=aten::addmm", "--where", "name=aten::linear", "--csv"
    ).stdout
    assert {row["name"] for row in rows(names)} == {"aten::addmm", "aten::linear"}
    assert all(
        row["module"] == ""
        for row in rows(call("table", trace_path, "spans", "--where", "module=", "--csv").stdout)
    )


def test_groups_and_filters_that_there_are_not_are_told_those_there_are(call, trace_path):
    assert "use one of name, shape, line, stack, module" in call("table", trace_path, "--by", "color").stderr
    assert "has no option 'by'" in call("table", trace_path, "spans", "--by", "name").stderr
    assert "use COLUMN=VALUE" in call("table", trace_path, "--where", "name").stderr
    assert (
        "the columns of the table are name, kind" in call("table", trace_path, "--where", "color=red").stderr
    )


def test_a_narrow_terminal_gets_the_columns_that_fit_and_is_told_the_others(call, trace_path):
    shown = call("table", trace_path, "spans", columns=50)
    lines = shown.stdout.splitlines()
    assert all(len(line) <= 50 for line in lines)
    text = " ".join(lines)
    assert "columns that do not fit:" in text
    assert "device_self_ns" in text
    # What has no value anywhere takes no room.
    assert "flops" not in text


def test_more_rows_than_are_shown_are_counted(call, trace_path):
    shown = call("table", trace_path, "spans", "--limit", "4")
    assert "6 more rows (--limit 0 for all)" in shown.stdout
    assert "more row" not in call("table", trace_path, "spans", "--limit", "0").stdout


def test_an_empty_table_says_so(call, trace_path):
    assert "no rows" in call("table", trace_path, "collectives").stdout


@pytest.mark.parametrize("name", sorted(kinetoscope.Trace.from_columns({}, strings=[""]).table_names))
def test_every_table_can_be_printed(call, trace_path, name):
    assert call("table", trace_path, name, columns=80).exit_code == 0
    assert call("table", trace_path, name, "--csv").exit_code == 0


def test_names_cannot_disturb_the_terminal(call, tmp_path):
    hostile = "\x1b[31m[bold]evil[/bold]\r\n\ud800\u202e"
    builder = training_trace().span(hostile, 30_000_000, 5_000_000)
    path = tmp_path / "hostile.ktrace"
    builder.build().save(path)
    shown = call("table", path, "ops")
    assert shown.exit_code == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert "[bold]evil[/bold]" in shown.stdout
    assert "\\x1b" in shown.stdout
    assert call("table", path, "spans", "--csv").exit_code == 0
    assert call("info", path).exit_code == 0


def test_sql_answers_with_units_where_names_have_them(call, trace_path):
    query = "select name, sum(self_ns) as self_ns, count(*) as count, 0.5 as half from spans group by name order by name"
    shown = call("sql", trace_path, query)
    assert shown.exit_code == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["name", "self_ns", "count", "half"]
    assert ["aten::addmm", "4", "ms", "2", "0.5"] in lines
    exact = {row["name"]: row["self_ns"] for row in rows(call("sql", trace_path, query, "--csv").stdout)}
    assert exact["aten::addmm"] == "4000000"


def test_sql_may_give_two_columns_one_name(call, trace_path):
    shown = call("sql", trace_path, "select 1 as a, 2 as a", "--csv")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[1] == "1,2"


@pytest.mark.parametrize("suffix", [".ktrace", ".parquet", ".json", ".json.gz"])
def test_convert_writes_what_the_suffix_says(call, trace_path, tmp_path, suffix):
    output = tmp_path / f"other{suffix}"
    shown = call("convert", trace_path, output)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith(f"{output}: ")
    assert output.stat().st_size > 0
    if suffix == ".json":
        assert len(json.loads(output.read_text())["traceEvents"]) > 5
    if suffix == ".ktrace":
        with kinetoscope.open(output) as again, kinetoscope.open(trace_path) as first:
            assert again.table("spans").equals(first.table("spans"))


def test_info_says_what_ran_how_it_ended_and_that_nothing_is_missing(call, trace_path):
    shown = call("info", trace_path)
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in shown.stdout.splitlines())
    assert facts["Complete"] == "yes, nothing was lost"
    assert facts["Program"] == "python train.py --lr 0.1 (exit code 0)"
    assert facts["Contents"].startswith("10 spans, 1 thread, 2 steps, 2 modules")
    assert (facts["Engine"], facts["Options"]) == ("native", "memory")
    assert "per span" not in facts["Trace"]
    assert facts["PyTorch"] == "2.13.0"


def test_info_says_what_was_lost_and_that_the_program_was_killed(call, tmp_path):
    path = tmp_path / "killed.ktrace"
    training_trace().killed().lose("recycled_spans", 12).build().save(path)
    shown = call("info", path).stdout
    assert "no: the recording was not stopped" in shown
    assert "oldest spans overwritten (12)" in shown


def test_info_names_the_devices(call, tmp_path):
    path = tmp_path / "devices.ktrace"
    devices = [
        {"type": "cpu", "index": -1, "name": "Fast 9000"},
        {"type": "cuda", "index": 0, "name": "NVIDIA H200"},
        5,
    ]
    training_trace().know("devices", devices).build().save(path)
    assert "Fast 9000, NVIDIA H200" in " ".join(call("info", path, columns=300).stdout.split())


def test_info_folds_on_a_narrow_terminal(call, trace_path):
    shown = call("info", trace_path, columns=50)
    assert all(len(line) <= 50 for line in shown.stdout.splitlines())
