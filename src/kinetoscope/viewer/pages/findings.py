"""Findings of a trace, with links to the spans, operators and source lines of the evidence; and its health."""

from __future__ import annotations

from typing import Any

from kinetoscope.analyses import health as judgement
from kinetoscope.analyses.findings import examine, for_page
from kinetoscope.display.sentence import printable
from kinetoscope.model.names import short_kernel_name
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from kinetoscope.storage.live_recording import is_running
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query


def findings(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `findings`: `as_dict` of the analysis, with what the page links to.

    Returns:
        The keys of `kinetoscope findings --json`. The `spans` of a finding are `span`, `name`, `kind` and `duration_ns`. `summary` is one sentence
        where nothing was found, `unknown` one for each rule that could not decide, `whose` one where several processes have steps; all are empty for a trace without time.
    """
    report = for_page(examine(trace))
    for finding in report["findings"]:
        finding["spans"] = [_evidence(trace, span) for span in finding["spans"]]
    return report


def _evidence(trace: Trace, span: int) -> dict[str, Any]:
    spans = trace.columns("spans")
    kind, name = int(spans["kind"][span]), trace.strings[int(spans["name"][span])]
    return {
        "span": span,
        "name": printable(short_kernel_name(name) if kind == SpanKind.KERNEL else name)[:500],
        "kind": KIND_NAMES[kind],
        "duration_ns": int(spans["duration_ns"][span]),
    }


def health(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `health`. Not cached: whether the recording continues may change at any time."""
    return judgement.health(trace, running=is_running(trace.run_info))


ROUTES = {"findings": findings, "health": health}
