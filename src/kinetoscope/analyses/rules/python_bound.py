"""Python code between operators takes the time, in one function of the program, or the function waits there.

Time in which no operator, call of a runtime, or wait is recorded; a function counts when it is more than the dispatch of operators,
which takes some 10 microseconds each. Samples say whether Python runs or waits, and for what. Threshold: 10 % of step time, as the host-bound
rules of TraceLens and XProf.
"""

from __future__ import annotations

import keyword
import re

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import SampleWait
from kinetoscope.tables.host.source_lines import line_text

LEAST_PERCENT = 10.0
LEAST_NS = 200_000
"""Shorter stretches are what calling an operator costs."""
DENSE_NS = 1_000
"""Recorded Python calls closer together than this say how long recording them takes, which is `profiler_cost`."""
WAITS = 0.5
"""A function waits if its thread did not run for more than this part of the time."""


OTHER_WAITS = ", such as for a file, a lock or another thread"
_ADVICE = (
    "Wait for it less often, or let another thread do it while the loop goes on: write files in the background, prepare ahead what the loop needs, hold "
    "locks for a shorter time."
)
_WAITS = {
    SampleWait.LOCK: (
        "waits for a lock or another thread",
        "Hold locks for a shorter time, and take the result of another thread later, when it is ready: queue.Queue and Future.done() say so without waiting.",
    ),
    SampleWait.SLEEP: (
        "sleeps",
        "Remove the pause, or let another thread do what it waits for and ask only whether that is done.",
    ),
    SampleWait.FILE: (
        "waits for a file to be read or written",
        "Read ahead and write in the background, in another thread: the loop then only waits where the disk is slower than the step.",
    ),
    SampleWait.PIPE: (
        "waits for a pipe, which another process writes or reads",
        "Start the process earlier and read its answer later, or keep one running instead of a new one each time.",
    ),
    SampleWait.SOCKET: (
        "waits for a socket",
        "Ask earlier, from another thread, and take the answer when it is there; send several requests at once.",
    ),
    SampleWait.PROCESS: (
        "waits for another process to end",
        "Start it with subprocess.Popen and ask later with poll() whether it has ended, or keep one running instead of a new one each time.",
    ),
    SampleWait.EVENTS: ("waits for one of several files or connections", _ADVICE),
    SampleWait.MEMORY: (
        "waits for memory to be read from a disk",
        "Read the file once into memory, such as without mmap, or ahead in another thread; with swapped-out memory, use less of it.",
    ),
    SampleWait.TERMINAL: ("waits for the terminal", "Print less often, or to a file."),
}


# What a line calls, without its arguments: names before a parenthesis, of functions or methods.
_CALLED = re.compile(r"([A-Za-z_][\w.]*)\(")
_NO_CALLS = frozenset(
    (
        *keyword.kwlist,
        "print",
        "len",
        "range",
        "zip",
        "enumerate",
        "list",
        "tuple",
        "dict",
        "set",
        "str",
        "int",
        "float",
        "isinstance",
        "super",
    )
)
_MOST_CALLED = 3
_NUMPY = "Express it in torch, whose operators compute in float32 and without a copy to NumPy and back; where it must be NumPy, keep the type of the tensor."
_KNOWN = (
    (r"gc\.collect", "Call gc.collect() less often; gc.freeze() after the model is built makes each call shorter."),
    (r"(torch\.)?(tensor|as_tensor|FloatTensor|LongTensor)", ("Numbers of Python lists become a tensor one by one: keep the parts as tensors and use torch.stack, or as one NumPy "
     "array and torch.from_numpy.")),
    (r"subprocess\.\w+|os\.(system|popen)|Popen|check_output", ("Starting a process takes milliseconds: ask the system directly, as psutil and files in /proc do, keep one process running, or do it "
     "less often.")),
    (r"(json|pickle|yaml|csv|marshal)\.\w+|\w*\.?(writerows?|to_csv|to_json)", ("Write less often, or only what is new: append a line for each step instead of writing everything anew, and let another thread "
     "write.")),
    (r"(np|numpy|scipy)\..*|.*\.numpy", _NUMPY),
    (r"copy\.deepcopy|deepcopy", "Copy values into tensors that are there, with copy_ or torch._foreach_copy_, instead of copying objects."),
    (r"re\.\w+|\w*(pattern|regex)\w*\.\w+|\w*\.?(tokenize|encode|encode_batch)", "Prepare texts once before the loop and keep the result, or let the workers of a DataLoader do it."),
)  # fmt: skip
"""Advice for functions that often take long without calling an operator: the first pattern that matches the name of the function decides."""


def calls_of_line(text: str) -> list[str]:
    """The functions that a line of Python calls, by its text: `json.dump`; the first few, each once."""
    found = dict.fromkeys(one for one in _CALLED.findall(text) if one not in _NO_CALLS)
    return list(found)[:_MOST_CALLED]


def waiting(wait: int) -> tuple[str, str]:
    """What is said of a loop that waits, and what to change, by what it waits for: a `SampleWait`."""
    return _WAITS.get(SampleWait(wait), ("waits", _ADVICE))


def python_bound(loop: Loop) -> Finding | None:
    """Find the function in which most Python runs between operators."""
    gap = next((gap for gap in loop.python_functions(LEAST_NS) if gap.place), None)
    if gap is None or (share := loop.share(gap.time_ns)) < LEAST_PERCENT:
        return None
    spans = loop.trace.columns("spans")
    calls = int((is_call(spans["kind"]) & loop.threads[spans["thread"]]).sum())
    if calls * DENSE_NS > loop.python.total_ns:
        return None
    if gap.blocked_part > WAITS:
        what, advice = waiting(gap.wait)
        said = f"{loop.unit.subject} {what} in {gap.place.named} for {{}} of {loop.unit.time} ({{}}{loop.unit.each})"
        said += OTHER_WAITS if gap.wait == SampleWait.UNKNOWN else ""
    else:
        called = calls_of_line(line_text(loop.trace, gap.place.file, gap.place.line))
        there = f", at a line that calls {', '.join(called)}" if called else ""
        said = f"Python in {gap.place.named} runs for {{}} of {loop.unit.time} ({{}}{loop.unit.each}) without any operator{there}"
        advice = next(
            (text for names, text in _KNOWN if any(re.fullmatch(names, one) for one in called)),
            "Move this code out of the step, do it less often, or express it as tensor operators. python_calls=True (kinetoscope run "
            "--python-calls) records which functions it runs.",
        )
    return Finding(
        "python-bound",
        sentence(said, (share, "%"), (loop.per_step(gap.time_ns), "ns")),
        advice,
        share,
        gap.time_ns,
        gap.place,
        spans=gap.rows,
        time=loop.python,
    )
