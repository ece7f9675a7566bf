"""What torch.compile makes of a program that calls us in compiled code: what it makes of the program without us, or with torch.profiler."""

from collections import Counter, OrderedDict
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="what compiles is torch's")

import torch
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.utils import counters
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader

import kinetoscope
from kinetoscope import itt
from kinetoscope.collect import OPTIMIZER_STEPS
from kinetoscope.collect.process import dynamo
from tests.support import warm_python
from tests.support.recorded import profile

X = torch.ones(4)
CALLS = 3


def compiled(function, *arguments, fullgraph=False):
    """Results of three calls of a compiled function, and how many frames, graphs and breaks it took."""
    torch._dynamo.reset()
    counters.clear()
    call = torch.compile(function, backend="eager", fullgraph=fullgraph)
    results = [call(*arguments) for _ in range(CALLS)]
    breaks = sum(counters["graph_break"].values())
    return results, {
        "frames": counters["frames"]["total"],
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": breaks,
    }


def plain(x):
    return x.sin().cos()


REQUEST = kinetoscope.request("outside")
decorated = kinetoscope.request("decorated")(plain)


def with_profile(x):
    with kinetoscope.profile() as prof:
        x = x.sin()
    assert prof is not None
    return x.cos()


def with_request(x):
    with kinetoscope.request("generate", tokens=1):
        x = x.sin()
    return x.cos()


def with_request_from_outside(x):
    with REQUEST:
        x = x.sin()
    return x.cos()


def with_decorated(x):
    return decorated(x)


def with_range(x):
    with kinetoscope.record_function("part"):
        x = x.sin()
    return x.cos()


INVISIBLE = (with_profile, with_request, with_request_from_outside, with_decorated, decorated, with_range)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("function", INVISIBLE, ids=lambda function: function.__name__)
def test_what_torch_profiler_hides_from_the_compiler_we_hide_too(function, fullgraph):
    results, numbers = compiled(function, X, fullgraph=fullgraph)
    expected, without = compiled(plain, X, fullgraph=fullgraph)
    assert numbers == without
    assert all(torch.equal(result, right) for result, right in zip(results, expected, strict=True))


def request_around_break(x):
    with kinetoscope.request("generate"):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()


def range_around_break(x):
    with torch.profiler.record_function("generate"):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()


def test_a_request_around_a_graph_break_is_as_a_range_of_torch():
    assert compiled(request_around_break, X)[1] == compiled(range_around_break, X)[1]


def parts(x):
    yield x.sin()
    yield x.cos()


decorated_parts = kinetoscope.request("parts")(parts)


def test_a_decorated_generator_breaks_the_graph_and_runs():
    results, numbers = compiled(lambda x: sum(decorated_parts(x)), X)
    assert torch.equal(results[-1], X.sin() + X.cos())
    assert numbers["breaks"] == 1


def test_an_ignored_request_is_said_once_in_a_process():
    done = warm_python.run(
        "-c",
        "import torch, kinetoscope\n"
        "def f(x):\n"
        "    with kinetoscope.request('generate'): return x.sin()\n"
        "for _ in range(2):\n"
        "    torch._dynamo.reset(); torch.compile(f, backend='eager', fullgraph=True)(torch.ones(2))\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torch.compile ignores kinetoscope.request in compiled code") == 1


def test_a_step_of_a_session_breaks_the_graph_once_and_is_recorded():
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=CALLS, repeat=1)
    with profile(schedule=schedule) as prof:

        def stepping(x):
            x = x.sin()
            prof.step()
            return x.cos()

        results, numbers = compiled(stepping, X)
    assert numbers == {"frames": 2, "graphs": 2, "breaks": 1}
    assert torch.equal(results[-1], plain(X))
    assert prof.trace.table("steps").num_rows == CALLS


def profiled_loop(profiler):
    def loop(x):
        with profiler.profile(schedule=profiler.schedule(wait=1, warmup=1, active=1)) as prof:
            for _ in range(4):
                x = x.sin()
                prof.step()
        return x

    return loop


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_a_session_with_its_steps_in_a_compiled_loop_compiles_no_more_than_torchs():
    results, numbers = compiled(profiled_loop(kinetoscope), X)
    expected, of_torch = compiled(profiled_loop(torch.profiler), X)
    assert torch.equal(results[-1], expected[-1])
    assert numbers["breaks"] == of_torch["breaks"] == 1
    assert numbers["graphs"] == of_torch["graphs"] == 0
    assert numbers["frames"] <= 3


def pushing(ranges):
    def push(x):
        ranges.range_push("part")
        x = x.sin()
        ranges.range_pop()
        return x

    return push


def within(ranges):
    def within_range(x):
        with ranges.range("part"):
            return x.sin()

    return within_range


def marking(ranges):
    def mark(x):
        ranges.mark("now")
        return x.sin()

    return mark


@pytest.mark.parametrize("program", [pushing, within, marking])
def test_itt_compiles_as_that_of_torch(program):
    results, numbers = compiled(program(itt), X)
    expected, of_torch = compiled(program(torch.profiler.itt), X)
    assert torch.equal(results[-1], expected[-1])
    assert numbers == of_torch


def test_a_recorder_that_stays_on_marks_steps_in_compiled_code(tmp_path):
    recorder = kinetoscope.leave_on(folder=tmp_path / "left")

    def stepping(x):
        x = x.sin()
        recorder.step()
        return x.cos()

    try:
        results, numbers = compiled(stepping, X)
        steps = recorder.status().step
    finally:
        recorder.stop()
    assert numbers == {"frames": 2, "graphs": 2, "breaks": 1}
    assert torch.equal(results[-1], plain(X))
    assert steps == CALLS - 1


def looping(items):
    def loop(x):
        for item in items:
            x = x + item
        return x

    return loop


def test_a_loop_of_steps_adds_only_its_own_breaks_and_is_recorded():
    loader = DataLoader(torch.arange(6.0).reshape(6, 1), batch_size=2)
    steps = []

    def loop(x):
        recorded = kinetoscope.steps(loader, engine="native")
        steps.append(recorded)
        for batch in recorded:
            x = x + batch.sum()
        return x

    results, numbers = compiled(loop, X)
    files = [code.co_filename for seen in input_codes.seen if (code := seen()) is not None]
    expected, _ = compiled(looping(loader), X)
    assert torch.equal(results[-1], X + 15.0)
    assert numbers["breaks"] <= 2
    assert numbers["graphs"] == 0
    # Functions of the standard library that run in between are frames, too: how many depends on what was cached before.
    assert 1 <= files.count(__file__) <= 3
    assert expected


def calling(function, keywords):
    def call(x):
        x = x.sin()
        function(**keywords)
        return x.cos()

    return call


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("DataLoading", {}),
        ("ExecutionTraceObserver", {}),
        ("SystemCounters", {}),
        ("install", {}),
        ("register_flops", {"name": "test_dynamo::operator"}),
        ("schedule", {"wait": 1, "warmup": 1, "active": 1}),
        ("supported_activities", {}),
        ("tensorboard_trace_handler", {"dir_name": "logs"}),
        ("uninstall", {}),
        ("unregister_flops", {"name": "test_dynamo::operator"}),
    ],
)
def test_each_other_call_breaks_the_graph_once(name, keywords):
    try:
        results, numbers = compiled(calling(getattr(kinetoscope, name), keywords), X)
    finally:
        kinetoscope.uninstall()
        kinetoscope.unregister_flops("test_dynamo::operator")
    assert numbers == {"frames": 2, "graphs": 2, "breaks": 1}
    assert torch.equal(results[-1], plain(X))


def training(kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = kind(model.parameters(), lr=0.1)

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model.weight


class Noting:
    """Listens to steps of optimizers, and notes what they find in the parameters."""

    def __init__(self):
        self.noted = []

    def __enter__(self):
        OPTIMIZER_STEPS.before(self._before)
        OPTIMIZER_STEPS.after(self._after)
        return self.noted

    def __exit__(self, *_):
        OPTIMIZER_STEPS.forget(self._before, self._after)

    def _before(self, optimizer, *_):
        self.noted.append(("before", optimizer.param_groups[0]["params"][0].tolist()))

    def _after(self, optimizer, *_):
        self.noted.append(("after", optimizer.param_groups[0]["params"][0].tolist()))


@pytest.fixture
def hooks(monkeypatch):
    """torch's hooks of all optimizers: ours alone."""
    OPTIMIZER_STEPS.listen()
    for name, hook in (("pre", OPTIMIZER_STEPS._before_step), ("post", OPTIMIZER_STEPS._after_step)):
        monkeypatch.setattr(optimizers, f"_global_optimizer_{name}_hooks", OrderedDict({0: hook}))
    return monkeypatch


# torch's compiler imports more of torch for a step of an optimizer.
torchs_own_warning = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")


@torchs_own_warning
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=lambda kind: kind.__name__)
def test_hooks_of_optimizers_break_no_graph_and_see_each_step(hooks, kind):
    with Noting() as noted:
        step, weight = training(kind)
        _, numbers = compiled(step, X)
    with hooks.context() as without_hooks:
        without_hooks.setattr(optimizers, "_global_optimizer_pre_hooks", OrderedDict())
        without_hooks.setattr(optimizers, "_global_optimizer_post_hooks", OrderedDict())
        step, expected = training(kind)
        _, without = compiled(step, X)
    assert numbers == without
    assert torch.equal(weight, expected)
    assert [when for when, _ in noted] == ["before", "after"] * CALLS
    values = [value for _, value in noted]
    # Each step changes the parameters, and nothing between two steps does.
    assert all(values[at] != values[at + 1] for at in range(0, 2 * CALLS, 2))
    assert all(values[at] == values[at + 1] for at in range(1, 2 * CALLS - 1, 2))


@torchs_own_warning
def test_listeners_that_come_after_the_compilation_see_compiled_steps(hooks):
    step, _ = training(torch.optim.SGD)
    torch._dynamo.reset()
    call = torch.compile(step, backend="eager")
    call(X)
    frames = counters["frames"]["total"]
    with Noting() as noted:
        call(X)
    assert len(noted) == 2
    assert counters["frames"]["total"] == frames


SESSIONS = {
    "native": lambda folder: kinetoscope.profile(engine="native"),
    "kineto": lambda folder: kinetoscope.profile(engine="kineto"),
    "stacks": lambda folder: kinetoscope.profile(engine="native", with_stack=True, with_modules=True),
    "shapes": lambda folder: kinetoscope.profile(engine="native", record_shapes=True, with_flops=True),
    "memory": lambda folder: kinetoscope.profile(engine="native", profile_memory=True),
    "steps": lambda folder: kinetoscope.profile(
        engine="native", schedule=kinetoscope.schedule(wait=0, warmup=1, active=1)
    ),
    "sources": lambda folder: kinetoscope.profile(
        engine="native", sources=[kinetoscope.DataLoading(), kinetoscope.SystemCounters()]
    ),
    "install": lambda folder: kinetoscope.install(),
}


@pytest.mark.parametrize("session", SESSIONS)
def test_a_session_between_two_calls_compiles_nothing_again(tmp_path, session):
    torch._dynamo.reset()
    counters.clear()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))

    def forward(x):
        with torch.profiler.record_function("part"):
            return model(x).relu()

    call = torch.compile(forward, backend="eager")
    call(X).sum().backward()
    before = Counter(counters["frames"]), Counter(counters["stats"])
    with SESSIONS[session](tmp_path) as prof:
        for _ in range(2):
            call(X).sum().backward()
            if session == "steps":
                prof.step()
    call(X).sum().backward()
    assert (Counter(counters["frames"]), Counter(counters["stats"])) == before


@pytest.mark.parametrize("first", ["import torch._dynamo", "kinetoscope.install()"])
def test_an_installed_session_is_ignored_in_any_order_of_imports(first):
    done = warm_python.run(
        "-c",
        "import torch, kinetoscope\n"
        f"{first}\n"
        "kinetoscope.install()\n"
        "def f(x):\n"
        "    with torch.profiler.profile(): return x.sin()\n"
        "def check():\n"
        "    torch._dynamo.reset(); torch.compile(f, backend='eager', fullgraph=True)(torch.ones(2))\n"
        "check(); kinetoscope.uninstall(); check()\n",
    )
    assert done.returncode == 0, done.stderr


PROGRAM = """
import torch
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.utils import counters
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
compiled = torch.compile(step, backend="eager")
for _ in range(5):
    compiled(torch.ones(2, 4))
breaks = sum(counters["graph_break"].values())
print("numbers", counters["frames"]["total"], counters["stats"]["unique_graphs"], breaks)
"""


def test_a_program_under_run_compiles_as_much_as_by_itself(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    words = [("train.py",), ("-m", "kinetoscope", "run", "--steps", "1:3", "-o", "run.ktrace", "train.py")]
    plain_run, recorded = warm_python.run_together([(of_program, None) for of_program in words], tmp_path)
    numbers = [
        next(line for line in run.stdout.splitlines() if line.startswith("numbers"))
        for run in (plain_run, recorded)
    ]
    assert numbers[0] == numbers[1]
    # Recording begins and ends with steps of the optimizer that run in compiled code.
    names = kinetoscope.open(tmp_path / "run.ktrace").table("ops").column("name").to_pylist()
    assert "aten::linear" in names


def code_of(path):
    """All code objects of a source file."""
    pending = [compile(path.read_text(), str(path), "exec")]
    while pending:
        code = pending.pop()
        yield code
        pending += [constant for constant in code.co_consts if isinstance(constant, type(code))]


def test_the_listed_files_and_functions_exist():
    folder = Path(kinetoscope.__file__).parent
    assert all((folder / path).exists() for path in dynamo.FILES_THAT_CALL_THE_PROGRAM)
    sources = folder / "collect" / "sources"
    of_requests = {code.co_qualname for code in code_of(sources / "requests.py")}
    assert of_requests.issuperset(dynamo.FUNCTIONS_THAT_CALL_THE_PROGRAM)
    of_optimizers = {code.co_qualname for code in code_of(sources / "optimizer_steps.py")}
    assert of_optimizers.issuperset(dynamo.OPTIMIZER_HOOKS)
