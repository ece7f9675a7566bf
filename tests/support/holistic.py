"""HolisticTraceAnalysis, run in a process of its own because it warns, logs and draws as it likes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_NEEDED = ("hta", "networkx", "pandas", "plotly", "psutil", "yaml")

needs_holistic = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in _NEEDED),
    reason="asks HolisticTraceAnalysis; to enable: pip install --no-deps HolisticTraceAnalysis==0.5.0, and networkx, "
    "pandas, plotly, psutil and pyyaml",
)

# Times are compared to the nanosecond, so it must not round them. Release 0.5 keeps correlation numbers, and rows of
# events beside them, in a column as narrow as the numbers need; pandas 3 refuses to put larger rows into it.
_ASK = """
import json, logging, sys
import hta.common.trace as trace
from hta.trace_analysis import TraceAnalysis

logging.disable(logging.CRITICAL)
link = trace.transform_correlation_to_index

def link_widely(df, symbols):
    df["correlation"] = df["correlation"].astype("int64")
    return link(df, symbols)

trace.transform_correlation_to_index = link_widely
found = []
for path in sys.argv[1:]:
    asked = TraceAnalysis(trace_files={0: path}, trace_dir="")
    answers = [asked.get_temporal_breakdown(visualize=False), *asked.get_gpu_kernel_breakdown(visualize=False)]
    found.append([json.loads(answer.to_json(orient="records")) for answer in answers])
print("ANSWERS " + json.dumps(found))
"""


def breakdowns(*traces: Path) -> list[list[list[dict[str, Any]]]]:
    """For each trace its breakdown of time, of time by kinds of kernels, and of time by kernels, as rows of each."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ASK, *map(str, traces)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS "))
    found: list[list[list[dict[str, Any]]]] = json.loads(answers.removeprefix("ANSWERS "))
    return found
