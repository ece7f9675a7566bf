"""The state of a rank as metrics, in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope.flight.jobs import HANGS

if TYPE_CHECKING:
    from kinetoscope.flight.step_log import StepLog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_QUANTILES = (0.5, 0.9, 0.99)
_PERCENT = 1 / 100


def metrics_text(status: dict[str, Any], log: StepLog | None) -> str:
    """Write metrics; what is unknown is left out.

    Args:
        status: What `GET /status` answers.
        log: The log of the last steps.
    """
    labels = {"job": status["job"], "attempt": status["attempt"], "rank": str(status["rank"])}
    lines: list[str] = []

    def add(name: str, kind: str, text: str, value: float | None, factor: float = 1.0, **more: str) -> None:
        if value is None:
            return
        if f"# TYPE kinetoscope_{name} {kind}" not in lines:
            lines.append(f"# HELP kinetoscope_{name} {text}")
            lines.append(f"# TYPE kinetoscope_{name} {kind}")
        pairs = ",".join(f'{key}="{_escaped(one)}"' for key, one in (labels | more).items())
        number = value * factor
        lines.append(
            f"kinetoscope_{name}{{{pairs}}} {int(number) if number == int(number) else format(number, '.10g')}"
        )

    add(
        "answered",
        "gauge",
        "1 if the program itself answered; else its own values are the last known.",
        status["answered"],
    )
    add("hangs", "gauge", "1 if the step under way takes far longer than usual.", status["state"] == HANGS)
    add("step", "gauge", "Number of the step under way.", status["step"])
    add(
        "step_under_way_seconds",
        "gauge",
        "How long the step under way has taken so far.",
        status["in_step_ns"],
        1e-9,
    )
    if log is not None and log.steps:
        durations = sorted(step.duration_ns for step in log.steps)
        for quantile in _QUANTILES:
            at = min(int(quantile * len(durations)), len(durations) - 1)
            add(
                "step_duration_seconds",
                "gauge",
                "Duration of the last steps, at most 1,024, by quantile.",
                durations[at],
                1e-9,
                quantile=str(quantile),
            )
    add("resident_memory_bytes", "gauge", "Resident memory of the process.", status["memory_bytes"])
    add(
        "recorded_ratio",
        "gauge",
        "Share of the steps that is recorded, 1 for all.",
        status["recorded_percent"],
        _PERCENT,
    )
    add(
        "overhead_budget_ratio",
        "gauge",
        "What recording may add to the time of steps, as a share of it.",
        status["budget_percent"],
        _PERCENT,
    )
    add(
        "overhead_ratio",
        "gauge",
        "What recording adds to the time of steps, as a share of it.",
        status["overhead_percent"],
        _PERCENT,
    )
    add(
        "overhead_low_ratio",
        "gauge",
        "Lower limit of the 95 % interval of overhead_ratio.",
        status["overhead_low_percent"],
        _PERCENT,
    )
    add(
        "overhead_high_ratio",
        "gauge",
        "Upper limit of the 95 % interval of overhead_ratio.",
        status["overhead_high_percent"],
        _PERCENT,
    )
    incidents = status["incidents"]
    add(
        "incidents_total",
        "counter",
        "Incidents that this process has kept.",
        None if incidents is None else len(incidents),
    )
    add(
        "incidents_refused_total",
        "counter",
        "Incidents that were not kept, because there were too many.",
        status["refused"],
    )
    add(
        "capture_running",
        "gauge",
        "1 while a capture is running.",
        None if incidents is None else status["capture"] is not None,
    )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
