"""Python: code that runs or waits between operators, and Python's garbage collector."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection

import numpy as np

from kinetoscope.analyses.called_package import package_below
from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Gap, Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import garbage_collections
from kinetoscope.model.kinds import is_call
from kinetoscope.model.names import source_line
from kinetoscope.model.schema import SampleState, SampleWait
from kinetoscope.tables.host.source_lines import line_text
from kinetoscope.tables.stacks import project_frames, project_lines

LEAST_NS = 200_000
"""Shorter stretches may be what torch does around operators."""
LEAST_OFTEN_NS, OFTEN = 50_000, 10
"""Stretches of this length count where a function has so many of them in a step, as one for each parameter."""
DENSE_NS = 1_000
"""Recorded Python calls closer together than this say how long recording them takes, which is `profiler_cost`."""
WAITS = 0.5
"""A function waits if its thread did not run for more than this part of the time."""


LEAST_PYTHON_PERCENT = 20.0
LEAST_STRETCH_NS = 1_000_000
"""Where Python takes less than this, or no stretch of it is as long as a full collection, collections are not what to look for."""
MOST_OF_TIME = 0.5
"""The program's own calls are what to change if they take more than this part of the time."""
_COLLECT = re.compile(r"\bgc\.collect\(")
_COLLECTS_ITSELF = (
    "The program collects garbage itself {often}{at}: {share} of {time}, at most {longest:ns} at once",
    "Call gc.collect() less often, and at the same time on all ranks; gc.freeze() after the model is built makes each call shorter.",
)
_OF_IMPORTS = "Call gc.disable() before this line, which imports modules, and gc.enable() after it: what modules create stays."
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
_NO_CALLS = frozenset((
    *keyword.kwlist, "print", "len", "range", "zip", "enumerate", "list", "tuple", "dict", "set", "str", "int", "float",
    "isinstance", "self", "super", "max", "min",
))  # fmt: skip
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
    names = dict.fromkeys(
        name for name in _CALLED.findall(text) if name not in _NO_CALLS and not name.endswith(".append")
    )
    return list(names)[:_MOST_CALLED]


def calls_at(loop: Loop, place: SourceLine) -> str:
    """What the line of a place calls, as the end of a sentence; empty where that is unknown."""
    called = calls_of_line(line_text(loop.trace, place.file, place.line))
    return f", at a line that calls {', '.join(called)}" if called else ""


def waiting(wait: int) -> tuple[str, str]:
    """What is said of a loop that waits, and what to change, by what it waits for: a `SampleWait`."""
    return _WAITS.get(SampleWait(wait), ("waits", _ADVICE))


@Rule(
    "python-bound",
    "Python in {named} runs for {share} of {time} ({pure:each_ns}{a_step}) without any operator{calls}",
    (
        "Move this code out of the step, do it less often, or express it as tensor operators. python_calls=True (kinetoscope run --python-calls) "
        "records which functions it runs."
    ),
    finds=(
        "Python runs between operators, at one place, with what its line calls, such as `json.dump`, and the library function that takes most of it; or the loop "
        "waits there, as samples say, with what for (a lock, a pause, a file, a pipe, a socket, another process) and what another thread runs meanwhile"
    ),
    source="the host-bound rules of TraceLens and XProf; calling an operator takes some 10 µs",
    also=f"in stretches of {LEAST_NS // 1000} µs or more, or of {LEAST_OFTEN_NS // 1000} µs where a function has {OFTEN} of them in a step",
    least=10.0,
    explains=("device-idle", "launch-bound"),
).selects
def python_bound(loop: Loop) -> Answer:
    """The function in which most Python runs between operators: time without operator, call of a runtime, or recorded wait."""
    gap = _longest_function(loop)
    spans = loop.trace.columns("spans")
    calls = int((is_call(spans["kind"]) & loop.on_threads).sum())
    if gap is None or calls * DENSE_NS > loop.python.total_ns:
        return None
    called = calls_of_line(line_text(loop.trace, gap.place.file, gap.place.line))
    waits = gap.blocked_part > WAITS
    text, advice = _text_of_wait(gap) if waits else ("", _advice_for(called))
    package = (
        None if waits else package_below(loop.trace, gap.stack_rows, gap.stack_ns, with_standard_library=True)
    )
    words = {"pure": gap.time_ns, "calls": calls_at(loop, gap.place), "meanwhile": _ran_meanwhile(loop, gap)}
    return Match(
        np.array(gap.rows, np.int64), gap.time_ns, words, place=gap.place, module="", text=text, advice=advice,
        time=loop.python, kind_ns=gap.kind_ns, called=package,
    )  # fmt: skip


def _longest_function(loop: Loop) -> Gap | None:
    """The function in which most Python runs, in long stretches or in many short ones; None where none has enough for a finding."""
    short = loop.python_functions(LEAST_OFTEN_NS)
    # Longer stretches are among these: a function has no more time in them.
    if not any(loop.share(gap.time_ns) >= python_bound.least for gap in short):
        return None
    often = [gap for gap in short if loop.per_step(gap.count) >= OFTEN]
    functions = [gap for gap in (*loop.python_functions(LEAST_NS), *often) if gap.place]
    return max(functions, key=lambda gap: gap.time_ns, default=None)


def _text_of_wait(gap: Gap) -> tuple[str, str]:
    waits, advice = waiting(gap.wait)
    other_waits = OTHER_WAITS if gap.wait == SampleWait.UNKNOWN else ""
    text = f"{{subject}} {waits} in {{named}} for {{share}} of {{time}} ({{pure:each_ns}}{{a_step}}){other_waits}{{meanwhile}}"
    return text, advice


def _ran_meanwhile(loop: Loop, gap: Gap) -> str:
    """What another thread ran for most of the time that the loop waited, as the end of a sentence; empty where none did."""
    if gap.blocked_part <= WAITS or gap.wait not in (SampleWait.UNKNOWN, SampleWait.LOCK):
        return ""
    trace, samples = loop.trace, loop.trace.columns("samples")
    is_loop = samples["thread"] == loop.thread
    waits = np.isin(samples["stack"], gap.stack_rows) & (samples["state"] == SampleState.BLOCKED)
    order = np.flatnonzero(is_loop)[np.argsort(samples["time_ns"][is_loop], kind="stable")]
    last = np.searchsorted(samples["time_ns"][order], samples["time_ns"], side="right") - 1
    ran = ~is_loop & (samples["state"] == SampleState.RUNNING) & (last >= 0) & waits[order][last]
    by_thread = Groups(samples["thread"], len(trace.columns("threads"))).sums(samples["period_ns"], ran)
    thread = int(by_thread.argmax())
    if by_thread[thread] < WAITS * samples["period_ns"][is_loop & waits].sum():
        return ""
    rows = np.flatnonzero(ran & (samples["thread"] == thread))
    by_stack = Groups(samples["stack"][rows], len(trace.columns("stacks"))).sums(samples["period_ns"][rows])
    stacks = by_stack.nonzero()[0]
    lines = project_lines(trace)[stacks]
    lines = np.where(project_frames(trace)[lines], lines, -1)
    by_line = Groups(lines, len(trace.columns("frames"))).sums(by_stack[stacks])
    if by_line.sum() > WAITS * by_stack.sum():
        return f"; meanwhile another thread runs {SourceLine(*source_line(trace, int(by_line.argmax())))}"
    package = package_below(trace, stacks, by_stack[stacks], with_standard_library=True)
    return "" if package is None else f"; meanwhile another thread is in {package}"


def _advice_for(called: Collection[str]) -> str:
    """What to change at a line that calls some functions; empty for others than those of `_KNOWN`."""
    return next((text for names, text in _KNOWN if any(re.fullmatch(names, name) for name in called)), "")


@Rule(
    "gc-pause",
    "Python collects garbage {often}: {share} of {time}, at most {longest:ns} at once",
    (
        "Call gc.freeze() after the model is built, turn automatic collection off with gc.disable(), and collect now and then, on all ranks at the same "
        "time."
    ),
    finds="Python's garbage collector stops the steps",
    source="PyTorch's advice for large jobs: collect at the same step on all ranks; share of all steps, as a full collection is rare",
    least=3.0,
    needs=Signal.GARBAGE_COLLECTION,
    explains=("python-bound", "step-outlier"),
).selects
def gc_pause(loop: Loop) -> Answer:
    """Collections of garbage; a line that calls `gc.collect` is known by its text."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(garbage_collections(loop.trace) & loop.on_threads)
    rows = rows[loop.in_steps(rows)]
    if len(rows) == 0:
        return Signal.GARBAGE_COLLECTION if _may_collect(loop) else None
    time_ns = loop.total_ns(rows)
    first = int(rows[np.argmax(spans["duration_ns"][rows])])
    words = {
        "often": f"{units.count(len(rows), 'time')} in {units.count(len(loop.work), loop.unit.noun)}",
        "longest": int(spans["duration_ns"][first]),
    }
    line, of_place_ns, _ = loop.by_place(rows)[0]
    if of_place_ns > MOST_OF_TIME * time_ns and _COLLECT.search(line_text(loop.trace, line.file, line.line)):
        text, advice = _COLLECTS_ITSELF
        return Match(rows, time_ns, words, place=line, text=text, advice=advice)
    importing = rows[np.append(loop.importing, False)[spans["stack"][rows]]]
    advice = _OF_IMPORTS if 2 * loop.total_ns(importing) > time_ns else ""
    return Match(rows, time_ns, words, place=loop.place_of(first), advice=advice)


def _may_collect(loop: Loop) -> bool:
    """Whether collections were not recorded, and Python runs long enough without operators for them."""
    length = loop.python.end_ns - loop.python.start_ns
    python_ns = int(length[length >= LEAST_STRETCH_NS].sum())
    is_recorded = loop.trace.run_info.record_python_gc_info
    return not is_recorded and loop.share(python_ns) >= LEAST_PYTHON_PERCENT
