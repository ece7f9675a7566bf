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
