"""The plugin of vLLM and SGLang: found by their entry points, and inert unless the environment asks for it."""

import json

import pytest

from tests.support import warm_python

PROGRAM = """
import json, sys, warnings
from importlib.metadata import entry_points
found = [one for one in entry_points(group=sys.argv[1]) if one.name == "kinetoscope"]
plug_in = found[0].load()
loaded_torch = "torch" in sys.modules
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    plug_in()
    plug_in()
if len(sys.argv) > 2:
    import torch.profiler
    profile = torch.profiler.profile.__module__
else:
    profile = ""
print(json.dumps({"found": len(found), "torch": loaded_torch, "profile": profile, "warned": [str(one.message) for one in warned]}))
"""

GROUPS = ("vllm.general_plugins", "sglang.srt.plugins")


def plugged_in(group, value, *words, runner=warm_python.run):
    program = f"import os\nos.environ['KINETOSCOPE'] = {value!r}\n{PROGRAM}"
    done = runner("-c", program, group, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("group", GROUPS)
def test_a_server_that_does_not_ask_keeps_torchs_profiler(group):
    found = plugged_in(group, "", "torch")
    assert (found["found"], found["warned"]) == (1, [])
    assert found["profile"].startswith("torch.")


@pytest.mark.parametrize("group", GROUPS)
def test_a_server_that_asks_records_with_kinetoscope(group):
    pytest.importorskip("torch", reason="torch.profiler is replaced")
    found = plugged_in(group, "install", "torch")
    assert found["warned"] == []
    assert found["profile"].startswith("kinetoscope.")


def test_a_value_that_is_none_is_a_warning_and_no_failure():
    found = plugged_in(GROUPS[0], "yes", "torch")
    assert found["profile"].startswith("torch.")
    assert all("KINETOSCOPE=yes: " in warning and "`install`" in warning for warning in found["warned"])
    assert found["warned"]


# The public surface of the two engines, as vLLM 0.33.0 and SGLang 0.5.23 have it. The true classes need a device; `tools/try_vllm.py` tries
# those of vLLM that can be imported without one.
VLLM = """
import types
def module(name):
    made = sys.modules[name] = types.ModuleType(name)
    return made
for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
    module(name).__path__ = []
class Worker:
    def execute_model(self, scheduled):
        layer(torch.ones(scheduled.total_num_scheduled_tokens, 8))
        if scheduled.fails:
            raise ValueError("of the model")
        return "output" if scheduled.pools else None
    def sample_tokens(self, grammar):
        return int(torch.ones(4).argmax())
class WorkerWrapperBase:
    def __init__(self):
        self.worker = Worker()
    def __getattr__(self, name):
        return getattr(self.worker, name)
    def execute_model(self, scheduler_output):
        return self.worker.execute_model(scheduler_output)
module("vllm.v1.worker.worker_base").WorkerWrapperBase = WorkerWrapperBase
plug_in(); plug_in()
worker = WorkerWrapperBase()
def iterate(kind, requests, tokens, fails=False, pools=False):
    new, waiting = {"prefill": (requests, 0), "mixed": (1, 0), "chunked": (0, requests), "decode": (0, 0)}[kind]
    outputs = [0] * waiting + [1] * (requests - new - waiting)
    scheduled = types.SimpleNamespace(
        scheduled_new_reqs=[object()] * new, scheduled_cached_reqs=types.SimpleNamespace(num_output_tokens=outputs),
        num_scheduled_tokens=dict.fromkeys(range(requests), 1), total_num_scheduled_tokens=tokens, fails=fails, pools=pools,
    )
    if worker.execute_model(scheduled) is None:
        assert worker.sample_tokens(None) == 0
"""

SGLANG = """
import enum, types, pkgutil
def module(name):
    made = sys.modules[name] = types.ModuleType(name)
    return made
for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.managers"):
    module(name).__path__ = []
hooks = module("sglang.srt.plugins.hook_registry")
class HookType(enum.Enum):
    AROUND = "around"
class HookRegistry:
    registered = []
    @classmethod
    def register(cls, target, hook, hook_type):
        cls.registered.append((target, hook, hook_type))
    @classmethod
    def apply_hooks(cls):
        for target, hook, _ in cls.registered:
            path, _, name = target.rpartition(".")
            of = pkgutil.resolve_name(path)
            original = getattr(of, name)
            setattr(of, name, lambda *args, **kwargs: hook(original, *args, **kwargs))
hooks.HookRegistry, hooks.HookType = HookRegistry, HookType
class Mode(enum.Enum):
    EXTEND = 1
    DECODE = 2
    MIXED = 3
    def is_decode(self): return self is Mode.DECODE
    def is_mixed(self): return self is Mode.MIXED
    def is_extend(self): return self is not Mode.DECODE
class Scheduler:
    def run_batch(self, batch, pp_proxy_tensors=None):
        layer(torch.ones(batch.extend_num_tokens or batch.batch_size(), 8))
        if batch.fails:
            raise ValueError("of the model")
sys.modules["sglang.srt.managers"].scheduler = module("sglang.srt.managers.scheduler")
sys.modules["sglang.srt.managers.scheduler"].Scheduler = Scheduler
plug_in(); plug_in()
HookRegistry.apply_hooks()
def iterate(kind, requests, tokens, fails=False, pools=False):
    mode = {"prefill": Mode.EXTEND, "chunked": Mode.EXTEND, "mixed": Mode.MIXED, "decode": Mode.DECODE}[kind]
    extended = None if kind == "decode" else tokens
    Scheduler().run_batch(types.SimpleNamespace(forward_mode=mode, extend_num_tokens=extended, fails=fails, batch_size=lambda: requests))
"""

ENGINE = """
import os, sys, json, warnings
os.environ["KINETOSCOPE"] = "on"
os.environ["KINETOSCOPE_DIR"] = sys.argv[1]
import torch, kinetoscope
from kinetoscope.integrations.servers import plug_in
warnings.simplefilter("error")
layer = torch.nn.Linear(8, 8)
recorder = kinetoscope.leave_on()
# Each of the steps, also those that the budget would leave out.
recorder.capture(20)
ENGINE
iterate("prefill", 2, 16)
for _ in range(10):
    iterate("decode", 2, 2)
    # Between two iterations, which is part of no step.
    torch.zeros(3)
iterate("mixed", 3, 10)
iterate("chunked", 1, 7, pools=True)
try:
    iterate("decode", 1, 1, fails=True)
except ValueError as error:
    assert str(error) == "of the model"
else:
    raise AssertionError
iterate("decode", 4, 4)
assert recorder.status().step == 14, recorder.status()
path = recorder.snapshot()
recorder.stop()
iterate("decode", 1, 1)
trace = kinetoscope.open(path)
steps = trace.table("steps").to_pylist()
inside = trace.column("spans", "step")
zeros = [int(inside[row]) for row, name in enumerate(trace.column("spans", "name")) if trace.strings[name] == "aten::zeros"]
print(json.dumps({
    "steps": [(one["name"], one["arguments"]) for one in steps],
    "kinds": [(one["name"], one["count"]) for one in trace.table("step_kinds").to_pylist()],
    "zeros": zeros,
}))
"""


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_iterations_of_an_engine_that_is_left_on_are_named_steps(engine, tmp_path):
    pytest.importorskip("torch", reason="the engine runs operators")
    done = warm_python.run("-c", ENGINE.replace("ENGINE\n", engine, 1), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [name for name, _ in found["steps"]]
    assert names == ["prefill", *["decode"] * 10, "mixed", "prefill", "decode", "decode"]
    arguments = [json.loads(text) for _, text in found["steps"]]
    assert arguments[0] == {"requests": 2, "tokens": 16}
    assert arguments[1] == {"requests": 2, "tokens": 2}
    assert arguments[-4:-2] == [{"requests": 3, "tokens": 10}, {"requests": 1, "tokens": 7}]
    # Steps of one name may be of two kinds, by what their operators take.
    counts: dict[str, int] = {}
    for name, count in found["kinds"]:
        counts[name] = counts.get(name, 0) + count
    assert counts == {"decode": 12, "mixed": 1, "prefill": 2}
    assert found["zeros"]
    assert set(found["zeros"]) == {-1}


def test_an_engine_of_another_surface_is_a_warning_and_goes_on():
    program = """
import os, sys, types, warnings
os.environ["KINETOSCOPE"] = "on"
for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.worker_base"):
    sys.modules[name] = types.ModuleType(name)
from kinetoscope.integrations.servers import plug_in
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    plug_in()
print([str(one.message) for one in warned])
"""
    done = warm_python.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert "the iterations of the engine are no steps: AttributeError" in done.stdout
