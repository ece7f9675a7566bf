"""Python stacks: the user's frames, and the stack that a span's time counts for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.nesting import depths_of
from kinetoscope.model.rows import Mask, mask_of
from kinetoscope.model.trace_data import TraceData, derived

# The user's line of a stack is its innermost frame outside torch, this package, and standard library code called by them.

# Any of these files reveals the folder of a torch package, installed or not.
_KNOWN_FILES = (
    "/torch/nn/modules/module.py", "/torch/utils/_contextlib.py", "/torch/_tensor.py", "/torch/autograd/__init__.py",
    "/torch/autograd/graph.py", "/torch/optim/optimizer.py", "/torch/_dynamo/eval_frame.py",
)  # fmt: skip
_PACKAGES = ("torch", "torchgen", "functorch", "torchvision", "torchaudio", "kinetoscope")
# torch.compile puts generated files into a folder named after the beginning of the file name.
_GENERATED = re.compile(r"/(\w\w)/c\1[a-z2-7]{40,}\.py$")
_INSTALLED = ("/site-packages/", "/dist-packages/")
# This package's examples count as user programs.
_OWN_PROGRAMS = ("/kinetoscope/examples/", "/kinetoscope/demo/")
_OWN_ROOMS = tuple(f"/kinetoscope/{part}" for part in (
    "cli/", "collect/", "flight/", "integrations/", "trace/", "tables/", "formats/", "launcher/", "_after_import.py",
    "__main__.py",
))  # fmt: skip


@derived
def user_frames(trace: TraceData) -> Mask:
    """Return for each frame whether it is the user's: outside torch, this package and Python's import system."""
    roots = _torch_roots(list(_paths(trace).values()))
    return _frames_whose_file(trace, lambda path: not _is_library(path, roots))


def _paths(trace: TraceData) -> dict[int, str]:
    """The files of frames, with forward slashes, by string number."""
    numbers = np.unique(trace.column("frames", "file")).tolist()
    return {number: trace.strings[number].replace("\\", "/") for number in numbers}


def _frames_whose_file(trace: TraceData, passes: Callable[[str], bool]) -> Mask:
    passed = {number: passes(path) for number, path in _paths(trace).items()}
    return np.array([passed[number] for number in trace.column("frames", "file").tolist()], dtype=bool)


@derived
def in_user_code(trace: TraceData) -> Mask:
    """Return for each stack whether its innermost frame is the user's; standard library frames count as their caller does."""
    frame = trace.column("stacks", "frame")
    is_user = np.append(user_frames(trace), False)[frame]
    is_standard = np.append(_frames_whose_file(trace, _is_standard), False)[frame]
    # A standard library frame belongs to its caller; the outermost frame is the program.
    rows = _innermost(trace, ~is_user | ~is_standard)
    return np.asarray(np.where(rows >= 0, is_user[rows], is_user))


@derived
def user_stacks(trace: TraceData) -> NDArray[np.int32]:
    """Return for each stack the stack that ends with its innermost user frame; the stack itself if it has none."""
    themselves = np.arange(len(trace.columns("stacks")), dtype=np.int32)
    return _innermost_or(trace, in_user_code(trace), themselves)


# Libraries that only compute what the program requests: their lines do not show a cause.
_COMPUTING_PACKAGES = ("PIL", "cv2", "numpy", "pandas", "scipy", "skimage", "sklearn")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)")


def _is_standard(path: str) -> bool:
    return _STANDARD_LIBRARY.search(path) is not None


@derived
def project_frames(trace: TraceData) -> Mask:
    """For each frame whether it is in the program's own files: below the script's folder or the working directory, outside installed packages.

    If no frame is, all code outside torch, Python and computing libraries counts.
    """
    program = trace.info.get("program")
    facts = program if isinstance(program, dict) else {}
    folder, command = facts.get("folder"), facts.get("command")
    folders = [folder] if isinstance(folder, str) else []
    if folders and isinstance(command, list) and command and isinstance(command[0], str):
        folders.append(os.path.dirname(os.path.join(folders[0], command[0])))
    inside = tuple({f"{folder.replace(chr(92), '/').rstrip('/')}/" for folder in folders})
    roots = _torch_roots(list(_paths(trace).values()))
    in_project = _frames_whose_file(
        trace,
        lambda path: (
            path.startswith(inside)
            and not installed_package(path)
            and not _is_library(path, roots)
            and not _is_standard(path)
        ),
    )
    if in_project.any():
        return in_project
    frames = mask_of(trace.column("stacks", "frame")[in_user_code(trace)], len(trace.columns("frames")) + 1)
    return frames[:-1] & ~library_frames(trace)


def installed_package(file: str) -> str:
    """The name of the installed package or archive that contains a file; empty for other files."""
    path = file.replace("\\", "/")
    for folder in (*_INSTALLED, ".zip/", ".egg/"):
        _, separator, inside = path.rpartition(folder)
        if separator:
            return inside.split("/", 1)[0].removesuffix(".py")
    return ""


def standard_module(file: str) -> str:
    """The name of the module of Python's standard library that a file is of, `json` for any of that package; empty for others."""
    path = file.replace("\\", "/")
    match = _STANDARD_LIBRARY.search(path)
    return path[match.end() :].split("/", 1)[0].removesuffix(".py") if match else ""


def library_frames(trace: TraceData) -> Mask:
    """Return for each frame whether it is in Python's standard library or in a computing library such as numpy."""
    return _frames_whose_file(
        trace, lambda path: _is_standard(path) or _in_packages(path, _COMPUTING_PACKAGES)
    )


@derived
def program_stacks(trace: TraceData) -> NDArray[np.int32]:
    """`user_stacks` without frames of the standard library and of computing libraries, unless nothing else is left."""
    others = np.append(~library_frames(trace), False)[trace.column("stacks", "frame")]
    return _innermost_or(trace, in_user_code(trace) & others, user_stacks(trace))


@derived
def program_frames(trace: TraceData) -> NDArray[np.int32]:
    """For each stack the frame of its innermost program line; -1 for none, and at the end for "no stack"."""
    frame = np.append(trace.column("stacks", "frame"), np.int32(-1))
    return np.asarray(frame[np.append(program_stacks(trace), np.int32(-1))])


@derived
def project_lines(trace: TraceData) -> NDArray[np.int32]:
    """For each stack the frame of its innermost line in the program's own files, else that of `program_frames`; -1 at the end for "no stack"."""
    frame = trace.column("stacks", "frame")
    rows = np.append(_innermost(trace, np.append(project_frames(trace), False)[frame]), np.int32(-1))
    return np.where(rows >= 0, np.append(frame, np.int32(-1))[rows], program_frames(trace))


def _innermost(trace: TraceData, chosen: Mask) -> NDArray[np.int32]:
    """For each stack the nearest chosen stack among itself and its callers; -1 for none."""
    parent = trace.column("stacks", "parent")
    return _core.nearest_marked(parent, depths_of(parent), chosen)


def _innermost_or(trace: TraceData, chosen: Mask, otherwise: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each stack the nearest chosen stack among itself and its callers, else its entry of `otherwise`."""
    rows = _innermost(trace, chosen)
    return np.where(rows >= 0, rows, otherwise)


def stacks_with(trace: TraceData, *endings: str, functions: Collection[str] = ()) -> Mask:
    """Find the stacks with any frame in some files.

    Args:
        trace: The trace.
        endings: The endings of the files' paths.
        functions: The qualified names of the functions; any by default.
    """
    chosen = _frames_in(trace, lambda path: path.endswith(endings), functions)
    return _innermost(trace, np.append(chosen, False)[trace.column("stacks", "frame")]) >= 0


def _frames_in(trace: TraceData, passes: Callable[[str], bool], functions: Collection[str]) -> Mask:
    """For each frame whether its file passes a test and its function is among `functions`, if there are any."""
    chosen = _frames_whose_file(trace, passes)
    if functions:
        names = [row for row, text in enumerate(trace.strings) if text in functions]
        chosen &= np.isin(trace.column("frames", "function"), names)
    return chosen


def stacks_inside(trace: TraceData, *places: str, functions: Collection[str] = ()) -> Mask:
    """Find the stacks in which the innermost user frame calls into some files of libraries.

    Args:
        trace: The trace.
        places: Parts of the files' paths.
        functions: The qualified names of the functions; any by default.
    """
    is_user, frame = user_frames(trace), trace.column("stacks", "frame")
    chosen = (
        _frames_in(trace, lambda path: any(folder in f"/{path}" for folder in places), functions) & ~is_user
    )
    rows = _innermost(trace, np.append(chosen | is_user, True)[frame])
    return np.asarray((rows >= 0) & np.append(chosen, False)[np.append(frame, -1)[rows]])


@derived
def working_stacks(trace: TraceData) -> NDArray[np.int32]:
    """Return for each stack the one that its time counts for: without frames that only enter a range.

    A range begins in the `__enter__` of its context manager, which returns before the code in the range runs.
    """
    frames, stacks, strings = trace.columns("frames"), trace.columns("stacks"), trace.strings
    files, functions = frames["file"].tolist(), frames["function"].tolist()
    enters = np.array(
        [
            strings[function].endswith(("__enter__", "enter_context"))
            and strings[file].replace("\\", "/").endswith(("torch/autograd/profiler.py", "/contextlib.py"))
            for file, function in zip(files, functions, strict=True)
        ],
        dtype=bool,
    )
    frame, is_called = stacks["frame"], stacks["parent"] >= 0
    enters_range = np.append(enters, False)[frame] & is_called
    # A context manager of the program may do more than enter a range.
    goes_on = np.append(~user_frames(trace), False)[frame] & is_called
    rows = _innermost(trace, enters_range | ~goes_on)
    return _innermost(trace, (rows < 0) | ~enters_range[rows])


def is_library_file(file: str) -> bool:
    """Whether a file belongs to an installed torch or to this package, or was generated by torch.compile."""
    return _is_library(file.replace("\\", "/"), ())


def is_program_file(file: str) -> bool:
    """Whether a file is neither a library file nor in Python's standard library or a computing library."""
    path = file.replace("\\", "/")
    return not (_is_library(path, ()) or _is_standard(path) or _in_packages(path, _COMPUTING_PACKAGES))


def _torch_roots(files: list[str]) -> tuple[str, ...]:
    """The folders of torch, also if it was built in place instead of installed."""
    return tuple(
        {file[: -len(known)] + "/torch/" for file in files for known in _KNOWN_FILES if file.endswith(known)}
    )


def _is_library(file: str, roots: tuple[str, ...]) -> bool:
    """Whether a file belongs to torch or to this package, or was generated by torch.compile; built-in functions have none."""
    if not file or file.startswith("<frozen") or file.startswith(roots) or _GENERATED.search(file):
        return True
    if any(folder in f"/{file}" for folder in _OWN_PROGRAMS):
        return False
    return any(folder in file for folder in _OWN_ROOMS) or _in_packages(file, _PACKAGES)


def _in_packages(file: str, packages: tuple[str, ...]) -> bool:
    return file.split("/", 1)[0] in packages or installed_package(file) in packages


@derived
def span_stacks(trace: TraceData) -> NDArray[np.int32]:
    """For each span the stack that its time counts for, -1 for none; a range does not count for the frame that entered it."""
    return np.asarray(np.append(working_stacks(trace), np.int32(-1)).take(trace.column("spans", "stack")))
