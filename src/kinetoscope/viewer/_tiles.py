"""The numbers at the head of the overview, each with what else is to be said of it.

Sentences have places for their numbers, as those of `kinetoscope.viewer._checks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope.tables.breakdown import step_time
from kinetoscope.viewer._checks import said

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer._checks import Said


def tile(title: str, value: float | None, unit: str, more: Said, hint: Said | None = None) -> dict[str, Any]:
    """A number with its title, what stands below it, and what is said when the pointer rests on it."""
    return {"title": title, "value": [value, unit], "more": more, "hint": hint or said("")}


def late(title: str, question: str) -> dict[str, str]:
    """A number that another question has as `tile`, since it takes longer to find."""
    return {"title": title, "ask": question}


def counted(count: int, noun: str, nouns: str = "") -> Said:
    """A count and what is counted."""
    return said(f"{{}} {noun if count == 1 else nouns or noun + 's'}", count)


def tiles(trace: Trace, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all that are known.

    Args:
        trace: The trace.
        facts: The rest of the answer to `overview`.
    """
    processes, kernels, operators = (facts[name] for name in ("processes", "kernels", "operators"))
    recorded = (
        counted(processes, "process", "processes") if processes > 1 else counted(facts["threads"], "thread")
    )
    found = [tile("Recorded", facts["duration_ns"], "ns", recorded)]
    if facts["steps"]:
        found.append(step_tile(facts["steps"]))
    found.append(busy_tile(trace, facts))
    if facts["memory"]:
        found.append(late("Memory peak", "overview/memory"))
    found.append(
        tile("Kernels", kernels, "", counted(operators, "operator"))
        if kernels
        else tile("Operators", operators, "", counted(facts["spans"], "span"))
    )
    if facts["shapes"]:
        found.append(late("Arithmetic", "overview/work"))
    return found


def step_tile(steps: dict[str, Any]) -> dict[str, Any]:
    """How long a step takes, where the trace has steps."""
    count, numbers = steps["count"], steps["numbers"]
    if numbers < count:
        text = f"{{}} step{'' if numbers == 1 else 's'} on {{}} processes"
        more = said(text, numbers, steps["processes"])
    elif count == 1:
        more = said("the only one")
    else:
        more = said("of {}, 95 % ≤ {}", count, (steps["p95_ns"], "ns"))
    hint = (
        said("The first step holds what ran before the training loop and is not counted here.")
        if steps["start_up"]
        else None
    )
    return tile("Step" if count == 1 else "Median step", steps["median_ns"], "ns", more, hint)


def busy_tile(trace: Trace, facts: dict[str, Any]) -> dict[str, Any]:
    """How much of the steps, or of the trace, devices worked, or operators ran where there is no device.

    Processes without steps, such as workers that load data, do not count where others have steps.
    """
    places = [place for place in step_time(trace) if place.steps or not facts["steps"]]
    shares = [100 * place.working_ns / place.duration_ns for place in places if place.duration_ns]
    on_host = facts["device_work"] == 0
    of = "of step time" if facts["steps"] else "of the recorded time"
    more = said(of)
    if len(shares) > 1:
        more = said(
            f"{of}, {{}} {'processes' if on_host else 'devices'}: {{}} to {{}}",
            len(shares), (min(shares), "%"), (max(shares), "%"),
        )  # fmt: skip
    what = (
        "an operator or backward function ran" if on_host else "the device computed, communicated or copied"
    )
    whole = sum(place.duration_ns for place in places)
    share = 100 * sum(place.working_ns for place in places) / whole if whole else None
    title = "In operators" if on_host else "Device busy"
    return tile(title, share, "%", more, said(f"The share {of} in which {what}."))


def memory_tile(peaks: list[dict[str, Any]]) -> dict[str, Any]:
    """The most memory of any device, by its peaks, the largest first."""
    if not peaks:
        none = said("no allocation was seen")
        return tile("Memory peak", None, "bytes", none, said("The most bytes of tensors that lived at once."))
    first = peaks[0]
    whole, attributed = (first["bytes"], "bytes"), (first["attributed_bytes"], "bytes")
    when, size = (first["time_ns"], "ns"), first["size_bytes"]
    parts: list[tuple[str, list[tuple[float | None, str]]]] = []
    if attributed < whole:
        parts.append(("{} attributed", [attributed]))
    if size:
        parts.append(("{} of {}", [(100 * first["bytes"] / size, "%"), (size, "bytes")]))
    parts = parts or [("after {}", [when])]
    more = said(
        " · ".join([first["device"], *(text for text, _ in parts)]),
        *(one for _, values in parts for one in values),
    )
    if not first["counted"]:
        hint = said(
            "The most bytes of tensors that lived at once, as far as the trace saw them allocated. "
            "What the allocator itself counted was not recorded."
        )
    else:
        hint = said(
            "The most that the allocator had handed out, {} after the start. Up to {} of it is attributed: "
            "the trace saw it allocated, and by whom.",
            when, attributed,
        )  # fmt: skip
    return tile("Memory peak", first["bytes"], "bytes", more, hint)


def work_tile(work: dict[str, Any]) -> dict[str, Any]:
    """How fast operations were done, and how near to the peak that is where it is known."""
    speed, share, flops = work["flops_per_s"], work["mfu_percent"], work["flops"]
    if flops is None:
        more = said("known for {} of the operators' time", (work["covered_percent"], "%"))
        return tile("Arithmetic", None, "FLOP/s", more, said(work["why"].replace("{}", "{ }")))
    covered = said("{} counted in all, known for {} of the operators' time.", (flops, "FLOP"), (work["covered_percent"], "%"))  # fmt: skip
    if share is None:
        return tile("Arithmetic", speed, "FLOP/s", said("{} in all", (flops, "FLOP")), covered)
    text = "Model FLOP utilisation: the time that its matrix work takes at the peak of the devices, as a part of the step. "
    hint = said(text + covered["text"], *covered["values"])
    return tile("MFU", share, "%", said("{}", (speed, "FLOP/s")), hint)
