"""What ran where, in words: the program, the machine, devices, versions, ranks, and what was recorded of it."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from kinetoscope.model.processes import infos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kinetoscope.trace import Trace

    Info = Mapping[str, Any]

LONGEST = 2000
"""A text from a trace may be of any length; no page shows more of it."""

# What it is called, its key, and by what its number is divided for the major and the minor version.
RUNTIMES = (
    ("CUDA", "cuda_runtime_version", 1000, 10),
    ("CUDA driver", "cuda_driver_version", 1000, 10),
    ("HIP", "hip_runtime_version", 10**7, 10**5),
)
# What was recorded besides, by the keyword that asked for it.
SWITCHES = {
    "record_shapes": "shapes",
    "profile_memory": "memory",
    "with_stack": "stacks",
    "with_modules": "modules",
    "with_flops": "FLOPs",
}
_MOST_SHOWN = 4


def program(info: Info) -> str | None:
    """The command line of the recorded program, as one would type it; None where nobody says it."""
    told = info.get("program")
    if isinstance(told, dict) and isinstance(told.get("command"), list):
        return _cut(f"python {shlex.join(map(str, told['command']))}")
    words = info.get("command_line")
    if isinstance(words, list) and words:
        return _cut(f"python {shlex.join(map(str, words))}")
    return _cut(words) if isinstance(words, str) and words else None


def ended(info: Info) -> str | None:
    """How the program ended, where that was seen."""
    told = info.get("program")
    return _text(told.get("ended")) if isinstance(told, dict) else None


def run_facts(trace: Trace) -> list[dict[str, str]]:
    """What is known of where and how the trace was recorded: labels and texts, what nobody says left out."""
    known = [trace.info, *infos(trace)]
    facts = [
        ("Devices", _devices(trace.info)),
        ("Ranks", _ranks(trace, known)),
        ("Host", _each(known, lambda info: _text(info.get("host")) or _text(info.get("host_name")))),
        ("Machine", _each(known, _machine)),
        ("PyTorch", _each(known, lambda info: _text(info.get("torch_version")))),
        ("Python", _each(known, lambda info: _text(info.get("python_version")))),
        *((name, _each(known, _runtime(key, major, minor))) for name, key, major, minor in RUNTIMES),
        ("NCCL", _each(known, lambda info: _of_job(info, "nccl_version"))),
        ("Trainer", _each(known, lambda info: _text(info.get("trainer")))),
        ("Engine", _each(known, lambda info: _text(info.get("engine")))),
        ("Options", ", ".join(word for key, word in SWITCHES.items() if trace.info.get(key))),
        ("float32 matmul", _each(known, lambda info: _text(info.get("float32_matmul_precision")))),
    ]
    return [{"label": label, "value": value} for label, value in facts if value]


def _devices(info: Info) -> str:
    """The devices of the machine, equal ones counted."""
    told = info.get("devices")
    told = told if isinstance(told, list) and told else info.get("deviceProperties")
    entries = told if isinstance(told, list) else []
    names = (_text(entry.get("name")) for entry in entries if isinstance(entry, dict))
    named = Counter(name for name in names if name)
    return _joined(name if times == 1 else f"{times} × {name}" for name, times in named.items())


def _ranks(trace: Trace, known: list[Info]) -> str:
    """Which ranks of how many the trace holds, and how they talk to each other."""
    found = sorted({number for info in known if (number := _rank(info)) is not None})
    if not found:
        return ""
    sizes = [size for info in known if (size := _whole(_job(info).get("world_size"))) is not None]
    text = _numbers(found)
    if sizes:
        text += f" of {max(sizes)}"
    backend = _each(known, lambda info: _of_job(info, "backend"))
    return f"{text}, {backend}" if backend else text


def _numbers(numbers: list[int]) -> str:
    """Ascending numbers, a gapless run of three or more as its ends."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return _joined(map(str, numbers))


def _machine(info: Info) -> str:
    """The kind of machine, and how many processors it has."""
    count = _whole(info.get("cpu_count"))
    processors = "" if count is None else f"{count} processor{'' if count == 1 else 's'}"
    return ", ".join(part for part in (_text(info.get("machine")), processors) if part)


def _runtime(key: str, major: int, minor: int) -> Callable[[Info], str]:
    """Reads the version of a device's runtime, which is one number."""

    def read(info: Info) -> str:
        version = _whole(info.get(key))
        return f"{version // major}.{version % major // minor}" if version and version >= major else ""

    return read


def _rank(info: Info) -> int | None:
    """The rank that a process had."""
    job = _job(info)
    return _whole(job.get("rank") if "rank" in job else info.get("rank"))


def _job(info: Info) -> Info:
    """What is known of the distributed job."""
    told = info.get("distributedInfo")
    return told if isinstance(told, dict) else {}


def _of_job(info: Info, key: str) -> str:
    """A text about the distributed job."""
    return _text(_job(info).get(key)) or ""


def _each(known: list[Info], read: Callable[[Info], str | None]) -> str:
    """What all processes say, each different answer once."""
    return _joined(dict.fromkeys(value for info in known if (value := read(info))))


def _joined(values: Iterable[str]) -> str:
    """Some values, and how many more there are."""
    listed = list(values)
    more = len(listed) - _MOST_SHOWN
    if more > 0:
        listed = [*listed[:_MOST_SHOWN], f"{more} more"]
    return ", ".join(listed)


def _whole(value: object) -> int | None:
    """A number from 0 on; a trace may say anything."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _text(value: object) -> str | None:
    """A text that says something."""
    return _cut(value) if isinstance(value, str) and value.strip() else None


def _cut(text: str) -> str:
    """A text of a length that can be shown, which can be written as UTF-8."""
    return text[:LONGEST].encode(errors="replace").decode()
