"""Runs Python programs in processes of their own that have PyTorch already: forked from one that imported it.

A new Python spends two seconds on `import torch`; a fork of a warm one starts in milliseconds and is as much a process
of its own: its memory, working directory, environment, signals, exit code and exit handlers are the program's. For
programs whose first import of torch is the point of a test, or that set what torch and Python read when they begin, start
a new Python.

    done = warm_python.run("-c", "import torch; print(torch.ones(3))", cwd=folder)
    done.stdout, done.returncode

`start` is to `subprocess.Popen` what `run` is to `subprocess.run`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# What Python, torch or its libraries read only once, when they begin.
_READ_ONCE = ("PYTHON", "OMP_", "MKL_", "LD_", "TORCH_", "KINETO_", "GOMP_")
_template: subprocess.Popen[str] | None = None
_template_environment: dict[str, str] = {}


def run(
    *words: str | os.PathLike[str],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `python WORDS...` (`-c TEXT`, `-m MODULE` or a file, and arguments) to its end.

    What it writes is in the result, apart from what goes to an open file or terminal that is given by its number.

    Raises:
        ValueError: The environment sets what only a new Python would read.
    """
    (done,) = run_together([(words, env)], cwd, stdout=stdout, stderr=stderr)
    return done


def run_together(
    programs: Iterable[tuple[Sequence[str | os.PathLike[str]], Mapping[str, str] | None]],
    cwd: str | os.PathLike[str] | None = None,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs several programs at the same time, each by its words and its environment, until all have ended.

    Raises:
        ValueError: An environment sets what only a new Python would read.
    """
    requests: list[dict[str, Any]] = []
    with contextlib.ExitStack() as open_files:
        outputs = []
        for words, given in programs:
            environment = dict(os.environ if given is None else given)
            files = [open_files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
            outputs.append(files)
            numbers = [
                file.fileno() if given is None else given
                for file, given in zip(files, (stdout, stderr), strict=True)
            ]
            requests.append(_request(words, environment, cwd, None, *numbers))
        codes = _ask(requests)
        texts = []
        for files in outputs:
            for file in files:
                file.seek(0)
            texts.append([file.read() for file in files])
    return [
        subprocess.CompletedProcess([sys.executable, *request["words"]], code, *text)
        for request, code, text in zip(requests, codes, texts, strict=True)
    ]


def start(
    *words: str | os.PathLike[str],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Started:
    """Begins `python WORDS...`, with pipes as its standard input and output; what it writes to standard error is the test's.

    Raises:
        ValueError: The environment sets what only a new Python would read.
    """
    (read_input, write_input), (read_output, write_output) = os.pipe(), os.pipe()
    try:
        environment = dict(os.environ if env is None else env)
        (pid,) = _ask([_request(words, environment, cwd, read_input, write_output, 2)], "start")
    except BaseException:
        os.close(write_input)
        os.close(read_output)
        raise
    finally:
        os.close(read_input)
        os.close(write_output)
    return Started(pid, write_input, read_output)


class Started:
    """A program that `start` began; it has the methods of `subprocess.Popen` that tests need.

    Attributes:
        pid: Its process ID.
        stdin: Writes to its standard input.
        stdout: Reads its standard output.
        returncode: As that of `Popen`; None until it was waited for.
    """

    def __init__(self, pid: int, write_input: int, read_output: int) -> None:
        self.pid = pid
        self.stdin = open(write_input, "w")  # noqa: SIM115
        self.stdout = open(read_output)  # noqa: SIM115
        self.returncode: int | None = None
        self._ends = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended, and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended after so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            os.close(self._ends)
            (self.returncode,) = _ask([self.pid], "wait")
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, unless it was waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it by SIGKILL, unless it was waited for."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Closes the pipes, and waits until it has ended."""
        with self.stdout, contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


def _request(
    words: Iterable[str | os.PathLike[str]],
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    *files: int | None,
) -> dict[str, Any]:
    """What the template needs to know of a program; `files` are the numbers of its three standard files here."""
    return {
        "words": [os.fspath(word) for word in words],
        "cwd": os.fspath(os.getcwd() if cwd is None else cwd),
        "environment": environment,
        # The template was started before them, and opens them as this process's.
        "files": [os.devnull if file is None else f"/proc/{os.getpid()}/fd/{file}" for file in files],
    }


def _ask(requests: list[Any], what: str = "run") -> list[int]:
    """Lets the template fork for each request and returns the exit codes, once all have ended.

    Or lets it only "start" them, and returns their process IDs; or lets it "wait" for those, and returns the exit codes.
    """
    global _template, _template_environment
    if _template is None:
        _template_environment = dict(os.environ)
        _template = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(_close)
    for request in requests if what != "wait" else ():
        given = request["environment"]
        changed = [
            name
            for name in {*_template_environment, *given}
            if name.startswith(_READ_ONCE) and _template_environment.get(name) != given.get(name)
        ]
        if changed:
            raise ValueError(
                f"{', '.join(sorted(changed))} differs from the warm process's: start a new Python"
            )
    assert _template.stdin is not None
    assert _template.stdout is not None
    try:
        _template.stdin.write(json.dumps([what, requests]) + "\n")
        _template.stdin.flush()
        answer = _template.stdout.readline()
    except BaseException:
        # A timeout or an interrupt: what still runs must not outlive the test.
        os.killpg(_template.pid, signal.SIGKILL)
        _close()
        raise
    if not answer:
        _close()
        raise RuntimeError("the process that forks warm Pythons has ended")
    codes: list[int] = json.loads(answer)
    return codes


def _close() -> None:
    """Ends the template."""
    global _template
    if _template is not None:
        with _template, contextlib.suppress(BrokenPipeError):
            _template.stdin.close()  # type: ignore[union-attr]
        _template = None
    atexit.unregister(_close)


# ---------------------------------------------------------------------------------------- in the process that is forked


class ShortMeasurement:
    """Lets `kinetoscope run` measure for a moment what recording costs here, and not for the second that an exact number takes.

    How exact it is, tests/launcher/test_overhead.py asks; programs in a new Python measure for as long as those of users.
    """

    _MODULE = "kinetoscope.launcher.overhead"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module with other constants, once it is loaded."""
        if name != self._MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(found for finder in others if (found := finder.find_spec(name, path, target)))
        load = spec.loader.exec_module  # type: ignore[union-attr]

        def load_shortened(module: Any) -> None:
            load(module)
            # Each of the groups that show the scatter needs a round.
            module.FEWEST_ROUNDS, module.ENOUGH_S, module._WARM_UP_RECORDS = module.GROUPS, 0.0, 0

        spec.loader.exec_module = load_shortened  # type: ignore[union-attr,method-assign]
        return spec


def _next_program() -> dict[str, Any]:
    """Forks for each request that comes; returns it in the fork."""
    for line in sys.stdin:
        what, requests = json.loads(line)
        children = []
        for request in requests if what != "wait" else ():
            # Before it forks: whoever asked closes its pipes once it has the answer.
            modes = (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)
            files = [os.open(*path_and_mode) for path_and_mode in zip(request["files"], modes, strict=True)]
            child = os.fork()
            if child == 0:
                return {**request, "files": files}
            for file in files:
                os.close(file)
            children.append(child)
        if what != "start":
            children = [
                os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                for child in (requests if what == "wait" else children)
            ]
        print(json.dumps(children), flush=True)
    os._exit(0)


def _become(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Makes this process what a new Python would be; returns the code of the program and the names it begins with."""
    import types

    for number, opened in enumerate(request["files"]):
        os.dup2(opened, number)
        os.close(opened)
    # The template's reads requests.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.meta_path.insert(0, ShortMeasurement())
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    first, *rest = request["words"]
    sys.orig_argv = [sys.executable, first, *rest]
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = ["-m", *rest[1:]]
        return compile(
            f"import runpy; runpy._run_module_as_main({rest[0]!r})", "<warm>", "exec", dont_inherit=True
        ), {}
    if first == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        return compile(rest[0], "<string>", "exec", dont_inherit=True), main.__dict__
    sys.path[0] = str(Path(first).resolve().parent)
    sys.argv = [first, *rest]
    main.__file__ = os.path.abspath(first)
    return compile(Path(first).read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Whoever started us may have blocked it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    import ctypes
    import gc

    import pyarrow
    import torch._dynamo
    import torch.profiler

    del pyarrow, torch
    # Pages of objects that no fork's collector looks at stay shared.
    gc.collect()
    gc.freeze()
    # When Python has ended, and what the program itself loaded, torch would take back each of its operators, which takes
    # longer than most programs: the process ends with the same code instead. Handlers run last to first.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fcloseall, None, None)
    # Sessions that record memory look at what a program froze; this is not the program's.
    gc.get_freeze_count = lambda: 0
    # The Triton that comes with torch 2.15 lists on standard error what is alive when Python has ended.
    if "triton" in sys.modules:
        atexit.register(gc.unfreeze)
    try:
        exec(*_become(_next_program()))
    except (Exception, KeyboardInterrupt) as error:
        # Shown as Python shows it, without the frame of this file; then it ends the process as it does there.
        shown = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(shown), shown, shown.__traceback__)
        sys.excepthook = lambda *_: None
        raise
