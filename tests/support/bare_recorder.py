"""A recorder built without torch, for any Python that has headers, and a reader of what it records.

Nothing but the standard library is needed: see `tests.support.calls_without_torch`, which is run by other Pythons.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sysconfig
import threading
from pathlib import Path
from types import CodeType

NATIVE = Path(__file__).resolve().parents[2] / "native"
WITHOUT_TORCH = (
    "call_hooks_monitoring.cpp", "call_hooks_profile.cpp", "clock.cpp", "dictionary.cpp", "dictionary_collection.cpp",
    "frame_layout.c", "helper_thread.cpp", "interpreter_view.cpp", "maintenance_thread.cpp", "memory_reader.cpp",
    "module_registry.cpp", "python_calls.cpp", "python_walk.cpp", "recorder.cpp", "recording_file.cpp",
    "row_writer.cpp", "sampler.cpp", "session.cpp", "step_watch.cpp", "thread_state.cpp",
)  # fmt: skip
STACKS, MODULES, CALLS, MODULE_SPANS = 4, 8, 0x100, 0x200
PYTHON, MODULE = 100, 101
CUT, BEGUN_BEFORE = 2, 4
# What `read` knows of the layout of recordings, by its names in `kinetoscope.storage.live_recording.LAYOUT`, which other
# Pythons cannot import; tests/storage/test_live_recording.py compares them.
LAYOUT = {
    "header_bytes": 8192, "chunk_header_bytes": 64, "header.chunk_bytes": 12, "header.chunks": 32, "chunk.kind": 4,
    "chunk.units": 12, "chunk.committed": 24,
}  # fmt: skip
RECORD_BYTES = {"spans": 24, "samples": 32}
KINDS = {"dictionary": 3, "spans": 1, "samples": 5}


def build(folder: Path) -> Path:
    """Compiles the recorder for this Python."""
    include = sysconfig.get_path("include")
    flags = [
        "-O0",
        "-fPIC",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-I",
        include,
        "-I",
        f"{include}/internal",
    ]
    flags += ["-I", str(NATIVE), *os.environ.get("SANITIZE", "").split()]
    sources = [NATIVE / "recorder" / name for name in WITHOUT_TORCH]
    sources.append(NATIVE / "core" / "recording" / "fault_guard.cpp")
    sources.append(NATIVE / "tests" / "without_torch" / "no_torch.cpp")
    # All C++ as one source, which takes a quarter of the time; make native-test takes each by itself.
    whole = folder / "whole.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in sources if source.suffix == ".cpp"))
    cxx = os.environ.get("CXX", "g++")
    objects = []
    for source in [whole, *(source for source in sources if source.suffix == ".c")]:
        compiler = [os.environ.get("CC", "gcc"), "-std=c11"]
        if source.suffix == ".cpp":
            compiler = [cxx, "-std=c++20", "-Werror"]
        objects.append(str(folder / (source.name + ".o")))
        if subprocess.run([*compiler, *flags, "-c", str(source), "-o", objects[-1]], check=False).returncode:
            raise SystemExit("the recorder does not compile without torch")
    library = folder / "recorder.so"
    subprocess.run([cxx, "-shared", *flags, "-o", str(library), *objects], check=True)
    return library


class Stopped(ctypes.Structure):
    _fields_ = (
        ("faults", ctypes.c_uint64), ("unnamed", ctypes.c_uint64), ("idle", ctypes.c_uint32), ("lost", ctypes.c_uint32),
        ("file_lost", ctypes.c_uint32), ("reserved", ctypes.c_uint32)
    )  # fmt: skip


class Recorder:
    """The few calls of the recorder's face that are needed here."""

    def __init__(self, library: Path, folder: Path, module_call: CodeType) -> None:
        self.face = ctypes.PyDLL(str(library))
        self.message = ctypes.create_string_buffer(512)
        self.folder = folder
        self.face.kinetoscope_recorder_load.argtypes = (ctypes.py_object, ctypes.c_char_p, ctypes.c_size_t)
        self.face.kinetoscope_recorder_start.argtypes = (
            ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_char_p,
            ctypes.c_size_t
        )  # fmt: skip
        self.face.kinetoscope_recorder_prepare_calls.restype = ctypes.py_object
        failed = self.face.kinetoscope_recorder_load(module_call, self.message, 512)
        assert not failed, self.message.value
        self.hook = self.face.kinetoscope_recorder_prepare_calls(b"/nowhere/")

    def start(self, what: int = CALLS, samples_per_second: int = 0) -> str:
        path = os.fsencode(self.folder / "calls.recording")
        threading.setprofile(self.hook)
        failed = self.face.kinetoscope_recorder_start(
            path, what | STACKS | MODULES, 0, 0, samples_per_second, self.message, 512
        )
        assert not failed, self.message.value
        return self.message.value.decode()

    def stop(self) -> Stopped:
        stopped = Stopped()
        assert self.face.kinetoscope_recorder_stop(ctypes.byref(stopped)) == 0
        threading.setprofile(None)
        assert self.face.kinetoscope_recorder_close() == 0
        assert stopped.idle == 1
        assert stopped.faults == 0
        return stopped

    def pause(self) -> None:
        assert self.face.kinetoscope_recorder_pause() == 0

    def resume(self) -> str:
        assert self.face.kinetoscope_recorder_resume(self.message, 512) == 0
        return self.message.value.decode()

    def change(self, what: int) -> str:
        """Records these calls from now on, and no others."""
        failed = self.face.kinetoscope_recorder_change(what | STACKS | MODULES, 0, self.message, 512)
        assert not failed, self.message.value
        return self.message.value.decode()

    def hooked_threads(self) -> int:
        return self.face.kinetoscope_recorder_hooked_threads()

    def spans(self) -> list[tuple]:
        """(thread, start, end, scope, flags, name, file) of every span, in order."""
        return read(self.folder / "calls.recording")[0]

    def samples(self) -> list[tuple]:
        """(thread, state, stack) of every sample; a stack has (function, file, line) of each frame, outermost first."""
        return read(self.folder / "calls.recording")[1]


def read(path: Path) -> tuple[list[tuple], list[tuple]]:
    """The spans and the samples of a recording, which may be running; see core/recording/format.h."""
    data = path.read_bytes()
    (chunk_bytes,) = struct.unpack_from("<I", data, LAYOUT["header.chunk_bytes"])
    (chunks,) = struct.unpack_from("<Q", data, LAYOUT["header.chunks"])
    strings, names, frames, stacks, sites, spans, samples = {}, {}, {}, {}, {}, [], []
    number = 0
    while number < chunks:
        at = LAYOUT["header_bytes"] + number * chunk_bytes
        _, kind, thread, units, _, committed = struct.unpack_from("<IIIIQQ", data, at)
        number += max(units, 1)
        at += LAYOUT["chunk_header_bytes"]
        if kind == KINDS["dictionary"]:
            end = at + committed
            while at < end:
                sort, length = struct.unpack_from("<II", data, at)
                body = data[at + 8 : at + 8 + length]
                if sort == 1:
                    strings[struct.unpack_from("<I", body)[0]] = body[4:].decode("utf-8", "surrogatepass")
                elif sort == 2:
                    names[struct.unpack_from("<I", body)[0]] = struct.unpack_from("<I", body, 4)[0]
                elif sort == 3:
                    frames[struct.unpack_from("<I", body)[0]] = struct.unpack_from("<III", body, 4)
                elif sort == 4:
                    stacks[struct.unpack_from("<I", body)[0]] = struct.unpack_from("<II", body, 4)
                elif sort == 11:
                    name, stack, _, _, _, rest = struct.unpack_from("<IIIIII", body, 4)
                    sites[struct.unpack_from("<I", body)[0]] = name, stack, rest & 0xFF
                at += 8 + (length + 7) // 8 * 8
        elif kind == KINDS["spans"]:
            for row in range(committed):
                start, end, site, _ = struct.unpack_from("<QQII", data, at + RECORD_BYTES["spans"] * row)
                duration = end & (1 << 48) - 1
                tick = start >> 4
                spans.append((thread, tick, tick + duration - 1 if duration else 0, start & 7, site))
        elif kind == KINDS["samples"]:
            size = RECORD_BYTES["samples"]
            samples += [struct.unpack_from("<QQIIIB", data, at + size * row) for row in range(committed)]
    found = []
    for thread, start, end, flags, site in sorted(spans, key=lambda span: span[:2]):
        name, stack, scope = sites[site]
        file = strings[frames[stacks[stack][1]][1]] if stack else ""
        found.append((thread, start, end, scope, flags, strings[names[name]], file))
    sampled = []
    for _, _, thread, stack, _, state in samples:
        places = []
        while stack:
            stack, frame = stacks[stack]
            function, file, line = frames[frame]
            places.append((strings.get(function, ""), strings.get(file, ""), line))
        sampled.append((thread, state, tuple(reversed(places))))
    return found, sampled
