"""Records Python and module calls, and samples, with a recorder that was built without torch, and checks what it recorded.

    python3.13 tests/support/calls_without_torch.py [FOLDER FOR THE BUILD]

For every version of Python that the recorder supports, whether torch exists for it or not: Python 3.11 has calls from
a profile function, later ones from sys.monitoring. Needs nothing but that Python, its headers and a C++ compiler.
Prints one line for each check; the exit code is 1 if one failed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

from bare_recorder import BEGUN_BEFORE, CALLS, CUT, MODULE, MODULE_SPANS, PYTHON, Recorder, build
from blocked_programs import PATIENCE_S, PROGRAMS, blocked, stack_in_python
from effort import times


class Module:
    """Stands for nn.Module: what counts is the code object of its call."""

    def __call__(self, *arguments):
        return self.forward(*arguments)

    def forward(self, inner=None):
        if inner is not None:
            inner()
        return leaf()


def leaf():
    return 1


def branch():
    return leaf() + leaf()


def tree(spans: list[tuple], root: str, scope: int = PYTHON) -> list:
    """What lies in the one call of `root`, as (name, calls inside), of the functions of this file."""
    (outer,) = [span for span in spans if span[5].rpartition(".")[2] == root and span[3] == PYTHON]
    top: list = []
    open_calls: list = [(outer[2], top)]
    for span in spans[spans.index(outer) + 1 :]:
        thread, start, end, kind, _, name, file = span
        if thread != outer[0] or start >= outer[2] or kind != scope or (kind == PYTHON and file != __file__):
            continue
        assert end >= start, "every call has its end"
        while start >= open_calls[-1][0]:
            open_calls.pop()
        assert end <= open_calls[-1][0], "calls nest"
        inside: list = []
        open_calls[-1][1].append((name.rpartition(".")[2], inside))
        open_calls.append((end, inside))
    return top


TWO_LEAVES = [("leaf", []), ("leaf", [])]


def check_nesting(recorder: Recorder) -> None:
    def program():
        branch()
        try:
            raises()
        except ValueError:
            leaf()

    def raises():
        passes_on()

    def passes_on():
        raise ValueError

    recorder.start()
    program()
    recorder.stop()
    inside = tree(recorder.spans(), "program")
    assert inside == [("branch", TWO_LEAVES), ("raises", [("passes_on", [])]), ("leaf", [])], inside


def check_generators(recorder: Recorder) -> None:
    def inner():
        yield leaf()
        yield 2

    def outer():
        yield from inner()

    def echo():
        while True:
            try:
                yield
            except KeyError:
                leaf()

    def program():
        list(outer())
        running = echo()
        next(running)
        running.throw(KeyError())
        running.send(1)
        running.close()

    recorder.start()
    program()
    recorder.stop()
    inside = tree(recorder.spans(), "program")
    first, *others = inside
    assert first == ("outer", [("inner", [("leaf", [])])]), inside
    assert others[:2] == 2 * [("outer", [("inner", [])])], inside
    assert others[2:] == [("echo", []), ("echo", [("leaf", [])]), ("echo", []), ("echo", [])], inside


def check_coroutines(recorder: Recorder) -> None:
    async def waits():
        for _ in range(3):
            await asyncio.sleep(0)

    async def both():
        await asyncio.gather(waits(), waits())

    def program():
        asyncio.run(both())

    recorder.start()
    program()
    recorder.stop()
    spans = [span for span in recorder.spans() if span[5].endswith("waits")]
    assert len(spans) == 8, spans
    assert all(one[2] <= other[1] for one, other in pairwise(spans)), "they end where they wait"


def check_recursion(recorder: Recorder) -> None:
    def down(depth):
        if depth:
            down(depth - 1)

    recorder.start()
    down(500)
    recorder.stop()
    spans = [span for span in recorder.spans() if span[5].endswith("down")]
    assert len(spans) == 501
    assert all(one[1] <= other[1] and other[2] <= one[2] for one, other in pairwise(spans))


def check_c_functions(recorder: Recorder) -> None:
    def program():
        sum(range(100_000))
        sorted([2, 1], key=lambda value: leaf() * value)
        [3, 1].sort(key=lambda value: leaf() * value)
        try:
            max([1, 2], key=fails)
        except ValueError:
            return
        for _ in range(50):
            isinstance(1, int)

    def fails(value):
        raise ValueError(value)

    recorder.start()
    program()
    recorder.stop()
    spans = recorder.spans()
    names = [span[5] for span in spans]
    for name in ("builtins.sum", "builtins.sorted", "builtins.max", "list.sort"):
        assert names.count(name) == 1, (name, names)
    (outer,) = [span for span in spans if span[5] == "builtins.sorted"]
    (key, other) = [span for span in spans if outer[1] < span[1] < outer[2] and span[5].endswith("<lambda>")]
    assert key[2] <= other[1]
    assert other[2] <= outer[2]
    assert names.count("builtins.isinstance") < 25


def check_threads(recorder: Recorder) -> None:
    begin, done, end = threading.Event(), threading.Event(), threading.Event()

    def early():
        begin.wait()
        branch()
        done.set()
        end.wait()

    def late():
        branch()

    first = threading.Thread(target=early)
    first.start()
    recorder.start()
    begin.set()
    done.wait()
    second = threading.Thread(target=late)
    second.start()
    second.join()
    recorder.stop()
    end.set()
    first.join()
    spans = recorder.spans()
    assert [called for called in tree(spans, "early") if called[0] == "branch"] == [("branch", TWO_LEAVES)]
    assert tree(spans, "late") == [("branch", TWO_LEAVES)]
    flags = {span[5].rpartition(".")[2]: span[4] for span in spans}
    assert flags["early"] == BEGUN_BEFORE | CUT, flags["early"]
    assert flags["late"] == 0


def check_start_and_end_in_the_middle(recorder: Recorder) -> None:
    def outer():
        inner()
        stops()

    def inner():
        recorder.start()
        branch()

    def stops():
        leaf()
        recorder.stop()

    outer()
    spans = recorder.spans()
    flags = {span[5].rpartition(".")[2]: span[4] for span in spans}
    assert (flags["inner"], flags["stops"], flags["outer"]) == (BEGUN_BEFORE, CUT, BEGUN_BEFORE | CUT), flags
    inside = tree(spans, "outer")
    assert inside[0] == ("inner", [("branch", TWO_LEAVES)]), inside
    assert inside[1][0] == "stops"
    assert inside[1][1][0] == ("leaf", [])


def check_modules(recorder: Recorder) -> None:
    outer, inner = Module(), Module()

    def program():
        outer(inner)
        inner()

    for what in (MODULE_SPANS, MODULE_SPANS | CALLS):
        recorder.start(what)
        program()
        recorder.stop()
        spans = recorder.spans()
        calls = [span for span in spans if span[3] == MODULE]
        assert [span[5] for span in calls] == ["Module"] * 3, calls
        assert calls[0][1] <= calls[1][1] <= calls[1][2] <= calls[0][2] <= calls[2][1]
        assert bool([span for span in spans if span[3] == PYTHON]) == bool(what & CALLS)


def check_others(recorder: Recorder) -> None:
    """Other users of the same mechanism: they keep theirs, and see all of ours as before."""
    if sys.version_info < (3, 12):
        sys.setprofile(lambda *_: None)
        theirs = sys.getprofile()
        assert "another profile function" in recorder.start()
        branch()
        recorder.stop()
        assert sys.getprofile() is theirs
        sys.setprofile(None)
        assert not [span for span in recorder.spans() if span[3] == PYTHON]
        return
    monitoring = sys.monitoring
    seen = []
    for number in (2, 3, 4):
        monitoring.use_tool_id(number, "theirs")
    monitoring.register_callback(2, monitoring.events.PY_START, lambda code, _: seen.append(code.co_name))
    monitoring.set_events(2, monitoring.events.PY_START)
    assert "other tools use all tool ids" in recorder.start()
    branch()
    recorder.stop()
    assert seen.count("leaf") == 2
    monitoring.free_tool_id(4)
    assert recorder.start() == ""
    branch()
    assert [monitoring.get_tool(number) for number in (2, 3, 4)] == ["theirs", "theirs", "kinetoscope"]
    recorder.stop()
    assert seen.count("leaf") == 4
    assert [span[5] for span in recorder.spans()].count("leaf") == 2
    assert [monitoring.get_tool(number) for number in (2, 3, 4)] == ["theirs", "theirs", None]
    monitoring.set_events(2, 0)
    for number in (2, 3):
        monitoring.free_tool_id(number)


def check_another_thread_stops(recorder: Recorder) -> None:
    def program():
        branch()
        stopper = threading.Thread(target=recorder.stop)
        stopper.start()
        stopper.join()

    recorder.start()
    program()
    inside = tree(recorder.spans(), "program")
    assert inside[0] == ("branch", TWO_LEAVES), inside


def check_fork(recorder: Recorder) -> None:
    recorder.start()
    child = os.fork()
    if child == 0:
        recorder.face.kinetoscope_recorder_forget_calls()
        threading.setprofile(None)
        branch()
        if sys.version_info >= (3, 12):
            os._exit(0 if sys.monitoring.get_tool(2) is None else 3)
        os._exit(0 if sys.getprofile() is None else 4)
    branch()
    _, status = os.waitpid(child, 0)
    recorder.stop()
    assert status == 0, status
    assert [span[5] for span in recorder.spans()].count("leaf") == 2


def sampled(recorder: Recorder, wanted: Callable[[list[tuple]], bool]) -> None:
    """Reads the running recording until it has the samples that a check wants."""
    until = time.monotonic() + PATIENCE_S
    while not wanted(recorder.samples()):
        assert time.monotonic() < until, "the sampler did not take these samples"


def check_samples_of_waiting_threads(recorder: Recorder) -> None:
    for program in PROGRAMS:
        with blocked(program) as thread:
            expected = stack_in_python(thread)
            recorder.start(0, samples_per_second=1000)
            sampled(recorder, lambda samples: any(stack == expected for _, _, stack in samples))  # noqa: B023
            recorder.stop()


def check_samples_of_running_threads(recorder: Recorder) -> None:
    done = threading.Event()
    texts = [
        "def work{0}():\n    total = 0\n    for number in range(100):\n        total += number\n",
        "work{0}()\n",
    ]

    def burn() -> None:
        for number in count():
            if done.is_set():
                return
            exec(compile("".join(texts).format(number), f"built{number}.py", "exec"), {})

    threads = [threading.Thread(target=burn) for _ in range(3)]
    recorder.start(0, samples_per_second=1000)
    for thread in threads:
        thread.start()
    # The processor is busy until they are there, three seconds for five hundred.
    enough = times(500, 2000)
    sampled(recorder, lambda samples: len(samples) > enough and {state for _, state, _ in samples} >= {1, 2})
    done.set()
    for thread in threads:
        thread.join()
    recorder.stop()
    inner = {frame for _, _, stack in recorder.samples() for frame in stack if frame[1].startswith("built")}
    assert inner
    for function, file, line in inner:
        number = file.removeprefix("built").removesuffix(".py")
        assert function == "<module>" or (function == f"work{number}" and 1 <= line <= 4), (
            function,
            file,
            line,
        )


def check_samples_beside_forks(recorder: Recorder) -> None:
    recorder.start(samples_per_second=1000)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            recorder.face.kinetoscope_recorder_forget_calls()
            os._exit(len(os.listdir("/proc/self/task")) - 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    sampled(recorder, lambda samples: len(samples) > 2)
    recorder.stop()


def registered_events() -> int:
    """How many events of sys.monitoring anybody wants, and how many places tools have taken there."""
    if sys.version_info < (3, 12):
        return 0
    tools = [tool for tool in range(6) if sys.monitoring.get_tool(tool) is not None]
    return len(tools) + sum(sys.monitoring.get_events(tool).bit_count() for tool in tools)


def check_pauses_and_changes(recorder: Recorder) -> None:
    def program() -> None:
        leaf()
        recorder.pause()
        assert recorder.hooked_threads() == registered_events() == 0
        branch()
        assert recorder.resume() == ""
        assert recorder.hooked_threads() > 0
        leaf()
        recorder.change(MODULE_SPANS)
        Module()()
        recorder.change(0)
        assert recorder.hooked_threads() == registered_events() == 0
        Module()(branch)

        def switch() -> None:
            recorder.change(MODULE_SPANS)
            recorder.change(CALLS | MODULE_SPANS)
            leaf()

        Module()(switch)

    recorder.start(CALLS)
    program()
    recorder.stop()
    spans = [span for span in recorder.spans() if span[3] == MODULE or span[6] == __file__]
    found = [
        (span[5].rpartition(".")[2], span[3], span[4]) for span in sorted(spans, key=lambda span: span[1])
    ]
    assert all(span[2] >= span[1] > 0 for span in spans)
    mine = [one for one in found if one[0] not in ("<module>", "main", "check_pauses_and_changes")]
    leaf_call, module, both = ("leaf", PYTHON, 0), ("Module", MODULE, 0), CUT | BEGUN_BEFORE
    first = [("program", PYTHON, CUT), leaf_call, ("program", PYTHON, both), leaf_call, module]
    assert mine[:5] == first, mine
    inside = {
        ("Module", MODULE, BEGUN_BEFORE),
        ("program", PYTHON, BEGUN_BEFORE),
        ("switch", PYTHON, BEGUN_BEFORE),
    }
    calls = {("__call__", PYTHON, BEGUN_BEFORE), ("forward", PYTHON, BEGUN_BEFORE)}
    assert set(mine[5:]) == inside | calls | {leaf_call}, mine
    assert mine.count(leaf_call) == 4, mine


def check_nothing_stays(recorder: Recorder) -> None:
    recorder.start(0)
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_tool(2) is None
    branch()
    recorder.stop()
    assert recorder.spans() == []
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_events(1) == 0


def main() -> int:
    """Runs every check."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        recorder = Recorder(build(folder), Path(scratch), Module.__call__.__code__)
        for name, check in list(globals().items()):
            if not name.startswith("check_"):
                continue
            try:
                check(recorder)
            except (AssertionError, LookupError, OSError, ValueError):  # the others shall be heard too
                traceback.print_exc()
                failed += 1
                if recorder.face.kinetoscope_recorder_is_recording():
                    recorder.stop()
                print(f"{name}: FAILED")
            else:
                print(f"{name}: ok")
    print(f"Python {sys.version.split()[0]}: {'failed' if failed else 'all right'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
