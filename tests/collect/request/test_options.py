"""The declarations of options, against the signatures made of them, and against what each engine really does."""

import dataclasses
import gc
import inspect
import re
import time
import warnings
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch._C._profiler import _ExperimentalConfig

import kinetoscope
from kinetoscope import ArgumentError, ProfilerActivity, Trace, profile
from kinetoscope.analyses.finding import Signal
from kinetoscope.collect.engines.hybrid import HybridEngine
from kinetoscope.collect.engines.native import NativeEngine, native_engine_status
from kinetoscope.collect.request.options import OPTIONS, EngineKind, RecordingOptions
from kinetoscope.collect.request.torch_settings import EVENT_METADATA, changed_settings
from kinetoscope.collect.sources.rank_clock import RankClocks
from kinetoscope.integrations.pytest import marker
from kinetoscope.model.schema import SpanKind
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (fixture)

CPU = ProfilerActivity.CPU
PATIENCE_S = 60.0

# ----------------------------------------------------------------------------------------------------- signatures


def test_a_session_has_a_keyword_for_every_option():
    keywords = inspect.signature(profile).parameters
    # Only what Kinetoscope itself starts has stacks and modules on request.
    assert set(OPTIONS) - set(keywords) == {"only_requested"}
    for name in OPTIONS.keys() & keywords:
        assert keywords[name].default == OPTIONS[name].default, name
        assert f"    {name}: " in profile.__doc__, name


def test_launch_has_a_keyword_for_every_option_of_the_command_line():
    keywords = inspect.signature(kinetoscope.launch).parameters
    assert {name for name in OPTIONS if name in keywords} == {
        name for name, option in OPTIONS.items() if option.flag
    }
    documented = " ".join(kinetoscope.launch.__doc__.split())
    for name, option in OPTIONS.items():
        if option.flag:
            assert keywords[name].default == option.when_launched, name
            assert f"{name}: {option.help}" in documented


PAGE = (Path(__file__).parents[3] / "docs" / "options.md").read_text(encoding="utf-8")
HEADER, _, *CELLS = (
    re.split(r" *\| *", line.strip("|").strip()) for line in re.findall(r"^\|.*", PAGE, re.MULTILINE)
)
ROWS = {cells[0].strip("`"): dict(zip(HEADER, cells, strict=True)) for cells in CELLS}


def test_the_page_of_options_says_what_is_declared():
    assert list(ROWS) == list(OPTIONS)
    for name, option in OPTIONS.items():
        row, flag = ROWS[name], f"{option.long_flag} {option.metavar}".strip()
        default = f"`{option.default!r}`".replace("'", '"')
        if option.launched is not None:
            default += f"; `{option.launched!r}` where Kinetoscope starts the program or cell"
        flags = ", ".join(f"`{'-' if len(short) == 1 else '--'}{short}`" for short in option.magic_flags)
        assert row["what it does"] == option.help
        assert row["default"] == default
        assert row["`kinetoscope run`"] == (f"`{flag}`" if flag else "")
        assert row["`%%kinetoscope`"] == flags
        assert all(f"{kind}: " in row["engines"] for kind in option.warnings)
        assert "?" not in row["values"] + row["engines"], f"say it in docs/options.md: {name}"
    stays = {name: f"- `{name}`: {option.stays}." for name, option in OPTIONS.items() if option.stays}
    assert re.findall(r"^- .*", PAGE, re.MULTILINE) == list(stays.values())


def test_options_as_attributes_of_a_session_are_options():
    attributes = {
        name
        for name, value in vars(kinetoscope.collect._KinetoProfile).items()
        if isinstance(value, property) and value.fset
    }
    assert attributes <= set(OPTIONS)
    assert attributes >= {name for name, option in OPTIONS.items() if option.recorded}


def test_what_findings_and_marked_tests_name_are_options():
    for signal in Signal:
        keyword, flag = signal.value
        if flag:
            assert f"--{OPTIONS[keyword.removesuffix('=True')].flag}" == flag
    for name, value in marker.SETTINGS.items():
        assert OPTIONS[name].is_switch
        assert value == (OPTIONS[name].when_launched or name == "profile_memory"), name


def test_no_two_options_have_a_flag_or_a_name_in_notebooks_in_common():
    for names in (
        [option.flag for option in OPTIONS.values() if option.flag],
        [name for option in OPTIONS.values() for name in option.magic_flags],
    ):
        assert len(names) == len(set(names))


# -------------------------------------------------------------------------------------------- what the engines do


class Log:
    """A source and an observer that write down their calls."""

    def __init__(self):
        self.calls = []

    def open(self):
        self.calls.append("open")

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")
        return self

    def close(self):
        self.calls.append("close")

    def cleanup(self):
        self.calls.append("cleanup")

    def add_to(self, trace):
        return trace

    def discard(self):
        pass


class Seen:
    """What a program, its session and its trace show of the options of its recording."""

    def __init__(self, kind, case, folder, options):
        self.kind, self.folder, self.log = kind, folder, Log()
        self.error = self.devices = None
        folder.mkdir()
        engine = kind
        if kind == "hybrid":
            self.devices = NotingEngine()
            engine = HybridEngine(NativeEngine(), self.devices)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._record(
                    {"activities": [CPU], "engine": engine} | case.base(self) | options(self), case.program
                )
            except (ArgumentError, ValueError, MemoryError) as error:
                self.error = error
        self.warnings = {str(warning.message) for warning in caught}

    def _record(self, options, program):
        self.session = profile.with_options(
            RecordingOptions(**options),
            schedule=kinetoscope.schedule(wait=0, warmup=0, active=1, repeat=2),
            on_trace_ready=self._ready,
        )
        with self.session:
            for _ in range(2):
                program(self)
                self.session.step()

    def _ready(self, session):
        self.trace = session.trace
        if session._options.on_error == "warn" or self.fails:
            raise ValueError("of the handler")

    fails = False

    def count(self, column):
        return int((self.trace.column("spans", column) >= 0).sum())

    def names(self):
        return [self.trace.strings[name] for name in self.trace.column("spans", "name").tolist()]

    def of_kind(self, kind):
        return int((self.trace.column("spans", "kind") == kind).sum())


LAYER = torch.nn.Linear(4, 4)


def work(_seen):
    x = LAYER(torch.ones(4, 4))
    gc.collect()
    with kinetoscope.record_function("a range"):
        x.sum()


def long_work(_seen):
    x = torch.ones(1)
    for _ in range(20_000):
        x.abs()


def until_sampled(seen):
    """Runs until there is a sample, where there should be one."""
    until = time.monotonic() + PATIENCE_S
    while seen.session.samples and seen.kind != "kineto":
        # Cycles after the first have a number behind the name.
        live = max(seen.folder.glob("live*"), key=lambda path: len(path.name))
        if len(Trace.from_recording(live).columns("samples")) > 0:
            break
        assert time.monotonic() < until, "the sampler did not take a sample"


def out_of_memory(_seen):
    raise MemoryError


@dataclasses.dataclass
class Case:
    """How it shows whether an option has an effect.

    Attributes:
        value: Makes another value than the default.
        shows: What is different with it.
        program: What runs.
        base: The other options.
    """

    value: object
    shows: object
    program: object = work
    base: object = lambda _: {"only_requested": True}


def on(shows, **more):
    """A switch that is off by default."""
    return Case(lambda _: True, shows, **more)


def off(shows, *more):
    """A switch that is on by default."""
    return Case(lambda _: False, shows, *more)


CASES = {
    # A range is a kind of its own, which is left out.
    "activities": Case(lambda _: [{CPU: ["CPU_OP"]}], lambda seen: "a range" in seen.names()),
    "record_shapes": on(lambda seen: seen.count("shapes") > 0),
    "profile_memory": on(lambda seen: len(seen.trace.columns("allocations")) > 0),
    "with_stack": on(lambda seen: seen.count("stack") > 0),
    "with_flops": on(lambda seen: sum(event.flops for event in seen.session.key_averages()) > 0),
    "with_modules": on(lambda seen: seen.count("module") > 0),
    "only_requested": on(lambda seen: (seen.count("stack") > 0, seen.count("module") > 0), base=lambda _: {}),
    "python_calls": on(lambda seen: seen.of_kind(SpanKind.PYTHON) > 2),
    "module_spans": on(lambda seen: seen.of_kind(SpanKind.MODULE) > 0),
    "garbage_collection": on(lambda seen: "Python GC" in seen.names()),
    "tensor_versions": on(lambda seen: len(seen.trace.columns("tensor_versions")) > 0),
    "deep_steps": on(lambda seen: len(seen.trace.columns("tensor_versions")) > 0),
    "samples": off(
        lambda seen: len(seen.trace.columns("samples")) > 0,
        until_sampled,
        lambda seen: {"path": seen.folder / "live"},
    ),
    "experimental_config": Case(
        lambda _: _ExperimentalConfig(expose_kineto_event_metadata=True),
        lambda seen: (
            seen.kind == "kineto"
            and EVENT_METADATA in changed_settings(seen.session._engine.torch_profiler.experimental_config)
        ),
    ),
    "execution_trace_observer": Case(lambda seen: seen.log, lambda seen: "cleanup" in seen.log.calls),
    "acc_events": on(lambda seen: len(seen.session.cycles)),
    "custom_trace_id_callback": Case(
        lambda _: lambda: "of a test", lambda seen: seen.trace.info["trace_id"] == "of a test"
    ),
    "post_processing_timeout_s": Case(
        lambda _: 2.5,
        lambda seen: (
            seen.devices.requests[0].options.post_processing_timeout_s
            if seen.devices
            else seen.kind == "kineto" and seen.session._engine.torch_profiler.post_processing_timeout_s
        ),
    ),
    "path": Case(lambda seen: seen.folder / "live", lambda seen: (seen.folder / "live").exists()),
    "summary": Case(lambda seen: seen.folder / "all", lambda seen: (seen.folder / "all").exists()),
    "ring_bytes": Case(lambda _: 200_000, lambda seen: seen.names().count("aten::abs"), long_work),
    "oom_report": Case(
        lambda seen: seen.folder / "oom.txt",
        lambda seen: (seen.folder / "oom.txt").exists(),
        out_of_memory,
        lambda _: {"profile_memory": True},
    ),
    "sources": Case(lambda seen: [seen.log], lambda seen: "close" in seen.log.calls),
    "source": off(lambda seen: seen.trace.info.get("source_lines")),
    "align_ranks": on(
        lambda seen: [type(source) for source in seen.session._own_sources(seen.session._options)].count(
            RankClocks
        )
    ),
    "on_error": Case(lambda _: "warn", lambda seen: seen.error is None),
}


def test_there_is_a_case_for_every_option():
    assert set(CASES) == set(OPTIONS) - {"engine"}


WARNINGS = [warning for option in OPTIONS.values() for warning in option.warnings.values()]


def text_of(warning, text):
    """Whether a text is a warning with the names of options, and the version of torch."""
    pattern = re.escape(warning).replace(r"\{names\}", ".+").replace(r"\{torch\}", ".+")
    return re.fullmatch(pattern, text) is not None


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("kind", get_args(EngineKind))
@pytest.mark.parametrize("name", CASES)
def test_an_engine_honors_an_option_or_says_that_it_does_not(name, kind, tmp_path, monkeypatch):
    # Reports on memory have a default place.
    monkeypatch.chdir(tmp_path)
    if name == "on_error":
        monkeypatch.setattr(Seen, "fails", True)
    case, warning = CASES[name], OPTIONS[name].warnings.get(kind)
    is_limited = f"{kind}: " in ROWS[name]["engines"]
    without = Seen(kind, case, tmp_path / "without", lambda _: {})
    seen = Seen(kind, case, tmp_path / "with", lambda seen: {name: case.value(seen)})
    said = [text for text in seen.warnings - without.warnings if any(text_of(one, text) for one in WARNINGS)]
    if isinstance(seen.error, ArgumentError):
        assert is_limited
        assert "activit" in str(seen.error)
        return
    honored = case.shows(seen) != case.shows(without)
    if not is_limited:
        assert honored
        assert said == []
    elif warning is not None:
        # In a part of the cases the engine does what the option says, in the others it says that it does not.
        assert honored or len(said) == 1
        assert all(text_of(warning, one) for one in said)
    else:
        assert not honored
        assert said == []


@pytest.mark.parametrize(("name", "part"), [("with_stack", "stacks"), ("with_modules", "modules")])
def test_a_recorder_that_failed_its_test_says_what_it_does_not_record(name, part, native, monkeypatch):  # noqa: F811
    status = native_engine_status()
    without = dataclasses.replace(status, details={**status.details, f"self-test: {part}": "none were found"})
    monkeypatch.setattr("kinetoscope.collect.engines.native._status", without)
    with (
        pytest.warns(UserWarning, match=f"{name}: {part} are not recorded here: none were found"),
        profile(activities=[CPU], engine=native, **{name: True}) as session,
    ):
        torch.ones(1)
    assert (session.trace.column("spans", part.removesuffix("s")) < 0).all()
    with profile(activities=[CPU], engine=native):
        torch.ones(1)
