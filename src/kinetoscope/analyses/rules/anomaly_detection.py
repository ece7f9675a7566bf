"""Anomaly detection is on: autograd looks for NaN in each gradient, and keeps the Python stack of each operator of forward.

Source: torch's tuning guide, which says to leave it to debugging. Threshold: 1 % of step time.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model import units
from kinetoscope.tables.stacks import stacks_with

LEAST_PERCENT = 1.0
_CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::item")
_ENGINE = "autograd::engine::evaluate_function"


def anomaly_detection(loop: Loop) -> Finding | None:
    """Find checks for NaN that autograd's engine itself makes, and the Python that formats stacks."""
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    checks = loop.rows_named(*_CHECKS)
    checks = checks[spans["parent"][checks] >= 0]
    above = spans["name"][spans["parent"][checks]]
    of_engine = [one for one in np.unique(above).tolist() if strings[one].startswith(_ENGINE)]
    checks = checks[np.isin(above, of_engine)]
    looks = checks[np.isin(checks, loop.rows_named(_CHECKS[0]))]
    if len(looks) == 0:
        return None
    formatting = stacks_with(loop.trace, "/traceback.py", "/linecache.py")
    time_ns = loop.cost_ns(checks) + loop.sampled(formatting)[0]
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    each = max(1, round(loop.per_step(len(looks))))
    # Where backward is called: the program's line, below which the engine runs.
    called = np.unique(spans["own_stack"][looks], return_counts=True)
    return Finding(
        "anomaly-detection",
        sentence(
            f"Autograd's anomaly detection checks {{}} {units.noun(each, 'gradient')}{loop.unit.each} for NaN: with the stacks that it keeps, {{}} of {loop.unit.time}",
            each,
            (share, "%"),
        ),
        "Turn it off once the bug is found: torch.autograd.set_detect_anomaly(False).",
        share,
        time_ns,
        loop.place_of_stack(int(called[0][np.argmax(called[1])])),
        spans=tuple(looks[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(checks),
    )
