"""Notebooks: the page of the documentation and a few cells more, run in a kernel; the options of the magic without one."""

import re
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.collect.request.options import OPTIONS, RecordingOptions
from kinetoscope.display.html import table_html
from kinetoscope.integrations import notebook
from tests.support.on_demand import OnDemand
from tests.support.trace_builder import TraceBuilder

nbclient = OnDemand("nbclient", "notebooks are executed by nbclient")
nbformat = OnDemand("nbformat", "notebooks are read by nbformat")

PAGE = Path(__file__).parents[2] / "docs" / "notebooks.md"
CELL = re.compile(r"^```\{code-block\} ipython3\n(.*?)^```", re.MULTILINE | re.DOTALL)

STATE = """def state():
    magics, formatter = get_ipython().magics_manager.magics, get_ipython().display_formatter.formatters["text/html"]
    return {kind: set(magics[kind]) for kind in magics}, dict(formatter.deferred_printers), dict(formatter.type_printers)
before = state()
%load_ext kinetoscope
"kinetoscope" in get_ipython().magics_manager.magics["cell"], state() == before"""
FIRST = {"load": STATE, "unload": "%unload_ext kinetoscope\nstate() == before"}
MORE = {
    "names": "%%kinetoscope -o named\nbelow = torch.ones(3)\nabove = below + 1",
    "look": "above.tolist(), type(named).__name__",
    "silent": "%%kinetoscope -q\n1 + 1;",
    "no stacks": "%%kinetoscope -q --no-stacks --no-modules --no-samples -o bare\ntorch.nn.Linear(2, 2)(torch.ones(2))",
    "of no stacks": "len(bare.columns('stacks')), len(bare.columns('modules')), 'aten::linear' in bare.table('ops')['name'].to_pylist()",
    "magic inside": "%%kinetoscope -q -o inner\n%time torch.ones(3).exp()\n'aten::exp'",
    "of inner": "sorted(inner.table('ops')['name'].to_pylist())",
    "braces": "%kinetoscope -q -o braced str({'a': len('{x} $y')})",
    "error": "%%kinetoscope -o failed\ntorch.ones(3)\nraise ValueError('in the cell')",
    "of error": "failed.table('ops')['name'].to_pylist()",
    "syntax": "%%kinetoscope\nif:",
    "wrong": "%%kinetoscope --colour\nnever = 1",
    "await": "%%kinetoscope\nawait never",
    "recorded twice": "%%kinetoscope -q\nfrom kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS\nACTIVE_SESSIONS.current() is not None",
    "lost": (
        "%%kinetoscope\nimport glob, os, tempfile\n"
        "for path in glob.glob(f'{tempfile.gettempdir()}/kinetoscope-{os.getpid()}-*/*'): os.unlink(path)\n7"
    ),
    "hostile": (
        "%%kinetoscope\nfor name in ('<script>gone()</script>', '$x$', '\\u202etxt'):\n"
        "    with kinetoscope.record_function(name): torch.ones(1)"
    ),
    "other table": "import pyarrow; pyarrow.table({'a': [1]})",
    "unloaded": "%unload_ext kinetoscope\nstate() == before",
    "after": "trace.table('ops')",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Runs the notebook once, and returns its cells by name: those of the page are `page 0`, `page 1` and so on."""
    page = {f"page {place}": cell for place, cell in enumerate(CELL.findall(PAGE.read_text("utf-8")))}
    sources = FIRST | page | MORE
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.rstrip("\n")) for source in sources.values()],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        # The kernel keeps a history and its connections in the home folder, unless it is told otherwise.
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name))
        nbclient.NotebookClient(
            made, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}}
        ).execute()
    nbformat.validate(made)
    return dict(zip(sources, made.cells, strict=True))


def data(cell, kind="text/html", output="display_data"):
    """Returns what a cell showed, in one form, put together."""
    return "".join(found["data"].get(kind, "") for found in cell.outputs if found.output_type == output)


def errors(cell):
    """Returns the kinds of the errors a cell ended with."""
    return [found.ename for found in cell.outputs if found.output_type == "error"]


def test_the_page_runs_as_it_stands(cells):
    page = [cell for name, cell in cells.items() if name.startswith("page")]
    assert len(page) >= 8
    assert [errors(cell) for cell in page] == [[] for _ in page]
    assert not any("UsageError" in found.get("text", "") for cell in page for found in cell.outputs)


def test_a_cell_shows_where_its_time_went_and_its_own_value_after_that(cells):
    cell = cells["page 1"]
    shown = data(cell)
    for expected in (
        ">Recorded</div>",
        "20 steps · ",
        "aten::addmm",
        ">modules</th>",
        "Sequential",
        "In[4]:3",
        "loss.backward()",
    ):
        assert expected in shown
    assert ">memory</th>" not in shown
    assert float(data(cell, "text/plain", "execute_result")) > 0
    assert "aten::addmm" in data(cell, "text/plain")


def test_the_trace_is_kept_and_its_tables_and_lists_show_as_html(cells):
    assert "modules: 4 rows" in data(cells["page 2"], output="execute_result")
    events = data(cells["page 3"], output="execute_result")
    assert ">Self CPU %</th>" in events
    assert events.index("aten::addmm") < events.index("aten::relu")


def test_a_statement_is_profiled_on_its_line(cells):
    assert data(cells["page 4"]).count('<td class="l">aten::') == 3
    assert "grad_fn=<AddmmBackward0>" in data(cells["page 4"], "text/plain", "execute_result")


def test_a_quiet_cell_shows_nothing_and_leaves_its_file(cells):
    assert cells["page 5"].outputs == []
    assert "memory_peak: " in data(cells["page 6"], output="execute_result")
    assert "activation" in data(cells["page 6"], output="execute_result") or "temporary" in data(
        cells["page 6"], output="execute_result"
    )


def test_a_trace_of_ones_own_shows_itself(cells):
    assert ">Trace</div>" in data(cells["page 7"], output="execute_result")


def test_names_of_a_profiled_cell_are_those_of_the_notebook(cells):
    assert data(cells["look"], "text/plain", "execute_result") == "([2.0, 2.0, 2.0], 'Trace')"
    assert data(cells["names"], "text/plain", "execute_result") == ""


def test_a_semicolon_silences_the_value(cells):
    assert cells["silent"].outputs == []


def test_stacks_and_modules_are_not_recorded_where_they_are_turned_off(cells):
    assert data(cells["of no stacks"], "text/plain", "execute_result") == "(0, 0, True)"


def test_magics_within_a_profiled_cell_run(cells):
    assert data(cells["magic inside"], "text/plain", "execute_result") == "'aten::exp'"
    assert "'aten::exp'" in data(cells["of inner"], "text/plain", "execute_result")


def test_a_statement_is_taken_as_it_stands(cells):
    assert data(cells["braces"], "text/plain", "execute_result") == "\"{'a': 6}\""


def test_an_exception_stops_the_cell_and_what_was_recorded_is_shown(cells):
    assert errors(cells["error"]) == ["ValueError"]
    assert "aten::ones" in data(cells["error"])
    assert "aten::ones" in data(cells["of error"], "text/plain", "execute_result")
    told = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(cells["error"].outputs[-1].traceback))
    assert "----> 2 raise ValueError('in the cell')" in told
    assert "notebook.py" not in told


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("wrong", "%kinetoscope has no option 'colour'; it knows --out, "),
        ("await", "cannot be profiled by %%kinetoscope"),
    ],
)
def test_wrong_use_is_one_line_before_the_cell_runs(cells, cell, said):
    (told,) = cells[cell].outputs
    assert told.name == "stderr"
    assert told.text.startswith("UsageError: ")
    assert said in told.text


def test_a_cell_that_is_no_python_says_so(cells):
    assert errors(cells["syntax"]) == ["SyntaxError"]


def test_the_cell_is_recorded_while_it_runs(cells):
    assert data(cells["recorded twice"], "text/plain", "execute_result") == "True"


def test_a_recording_that_is_lost_is_a_warning_and_the_cell_goes_on(cells):
    assert errors(cells["lost"]) == []
    assert data(cells["lost"], "text/plain", "execute_result") == "7"
    (told,) = [found.text for found in cells["lost"].outputs if found.output_type == "stream"]
    assert "the recording of the cell is lost: " in told


def test_hostile_names_are_text(cells):
    shown = data(cells["hostile"])
    assert "&lt;script&gt;gone()&lt;/script&gt;" in shown
    assert "<script" not in shown
    assert "\\u202etxt" in shown
    assert "tex2jax_ignore" in shown


def test_tables_of_others_show_as_they_did(cells):
    assert data(cells["other table"], output="execute_result") == ""
    assert "pyarrow.Table" in data(cells["other table"], "text/plain", "execute_result")


def test_unloading_takes_everything_back(cells):
    assert data(cells["load"], "text/plain", "execute_result") == "(True, False)"
    # Before any table was shown, and after.
    for cell in ("unload", "unloaded"):
        assert data(cells[cell], "text/plain", "execute_result") == "True"
    assert data(cells["after"], output="execute_result") == ""


# --------------------------------------------------------------------------------------------- without a kernel


def test_the_options_of_a_line():
    asked = notebook.parsed(
        '-o t --rows=3 -m --shapes --no-stacks -q model(x, "-o")  # and "so" on', in_cell=False
    )
    assert (asked.out, asked.rows, asked.quiet) == ("t", 3, True)
    assert notebook.settings_of(asked) == {
        "with_stack": False,
        "profile_memory": True,
        "record_shapes": True,
    }
    assert asked.statement == 'model(x, "-o")  # and "so" on'


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS.values() if option.magic_flags], ids=lambda option: option.name
)
def test_every_option_of_a_recording_is_in_the_help_and_changes_the_default(option):
    for name in option.magic_flags:
        written = f"{'-' if len(name) == 1 else '--'}{name}"
        settings = notebook.settings_of(notebook.parsed(written, in_cell=True))
        recording = RecordingOptions.launched(**settings)
        assert getattr(recording, option.name) is not option.when_launched
        assert re.search(
            rf"^ +(-m, )?{written}[, ]", notebook.KinetoscopeMagics.kinetoscope.__doc__, re.MULTILINE
        )


def test_a_cell_without_options_is_recorded_like_a_program():
    settings = notebook.settings_of(notebook.parsed("", in_cell=True))
    assert RecordingOptions.launched(**settings) == RecordingOptions.launched()


def test_a_statement_may_begin_with_a_minus():
    assert notebook.parsed("-q -- -x", in_cell=False).statement == "-x"


@pytest.mark.parametrize(
    "statement",
    [
        '"-q".join( "a  b" )',
        "print('it''s',  \"{x} $y\")",
        "f(x)  # it's --out of 'here",
        "x = -q -m",
        "'--' + y",
        "r'\\' + z",
    ],
)
@pytest.mark.parametrize("options", ["", "-q ", "-q -- ", "-q  --  "])
def test_a_statement_arrives_as_it_was_written(options, statement):
    assert notebook.parsed(options + statement, in_cell=False).statement == statement


@pytest.mark.parametrize("written", ['-s "{}"', "--save '{}'", '--save="{}"'])
def test_a_path_may_hold_spaces(tmp_path, written):
    (tmp_path / "my runs").mkdir()
    path = f"{tmp_path}/my runs/a.json"
    asked = notebook.parsed(f"{written.format(path)} -o t", in_cell=True)
    assert (asked.save, asked.out) == (path, "t")


def test_tables_show_their_units_and_what_they_mean():
    builder = TraceBuilder().span("aten::<b>", 0, 2_500_000)
    builder.allocate(3, 0x10, 2048)
    trace = builder.build()
    shown = table_html(trace.table("ops"))
    assert "ops: 1 row<" in shown
    assert 'title="2,500,000 ns">2.50 ms</td>' in shown
    assert 'title="2,048 bytes">2 KiB</td>' in shown
    assert "Share of all self time." in shown
    assert "aten::&lt;b&gt;" in shown
    assert ">–</td>" in table_html(trace.table("spans"))
    long = TraceBuilder()
    for place in range(30):
        long.span("aten::relu", place * 10, 5)
    twice = trace.table("ops").append_column("name", [["of the same name"]])
    assert ">of the same name</td>" in table_html(twice)
    assert "spans: the first 20 of 30 rows" in table_html(long.build().table("spans"))


def test_numbers_that_are_names_are_written_as_names():
    builder = TraceBuilder()
    builder.span("aten::relu", 0, 5, stack=builder.stack(("train.py", 1234, "main")))
    trace = builder.build()
    trace.info["process"] = 54321
    shown = table_html(trace.table("spans"))
    assert ">54321</td>" in shown
    assert ">1234</td>" in table_html(trace.table("lines"))


def test_the_names_that_ipython_looks_for_are_no_public_names():
    assert kinetoscope.load_ipython_extension is notebook.load_ipython_extension
    assert "load_ipython_extension" not in vars(kinetoscope)
    assert "load_ipython_extension" not in dir(kinetoscope)
