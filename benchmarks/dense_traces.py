"""Chrome traces with little text for each event, as short names and few arguments make them: the hardest files to read in little memory."""

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

# A plausible Unix time in microseconds.
_FIRST_US = 1_419_124_704_850_743
_NAMES = [f"aten::op{number}" for number in range(200)]


def _time(ns: int) -> str:
    """Format nanoseconds as microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03}"


def _complete(category: str, name: str, tid: int, start_ns: int, duration_ns: int, args: str = "") -> str:
    """Format a complete event."""
    return (
        f'{{"ph":"X","cat":"{category}","name":"{name}","pid":7,"tid":{tid},"ts":{_FIRST_US + start_ns // 1000}.{start_ns % 1000:03},'
        f'"dur":{_time(duration_ns)}{args}}}'
    )


def operators(generator: random.Random) -> Iterator[str]:
    """Operators without arguments, three deep, on four threads."""
    next_ns = [0] * 4
    while True:
        thread = generator.randrange(4)
        start_ns, duration_ns = next_ns[thread], generator.randrange(5_000, 200_000)
        for begin_ns, length_ns in (
            (start_ns, duration_ns),
            (start_ns + 500, duration_ns // 3),
            (start_ns + duration_ns // 2, duration_ns // 4),
        ):
            yield _complete("cpu_op", generator.choice(_NAMES), 100 + thread, begin_ns, length_ns)
        next_ns[thread] += duration_ns + generator.randrange(100, 3000)


def python_calls(generator: random.Random) -> Iterator[str]:
    """Python calls of a program that repeats the same 4,000 calls, up to 12 deep, each with its number."""
    functions = [f"torch/nn/modules/m{row % 60}.py({row * 7}): f{row}" for row in range(800)]
    depths, names = [0], [functions[0]]
    for _ in range(3999):
        depths.append(generator.randrange(1, min(depths[-1] + 1, 12) + 1))
        names.append(generator.choice(functions))
    now_ns, numbers = 0, count()
    while True:
        starts, ends, inside = [0] * len(depths), [0] * len(depths), list[int]()
        for row, depth in enumerate([*depths, 0]):
            while inside and depths[inside[-1]] >= depth:
                now_ns += generator.randrange(100, 500)
                ends[inside.pop()] = now_ns
            now_ns += generator.randrange(100, 900)
            if row < len(depths):
                starts[row] = now_ns
                inside.append(row)
        for row, start_ns in enumerate(starts):
            args = f',"args":{{"Python id":{next(numbers)}}}'
            yield _complete("python_function", names[row], 7, start_ns, ends[row] - start_ns, args)


def launches(generator: random.Random) -> Iterator[str]:
    """Operators of a few microseconds with one launch and one kernel each, and their arrow, as an inference server has them."""
    now_ns = device_ns = 0
    for number in count(1):
        start_ns, now_ns = now_ns, now_ns + generator.randrange(3000, 9000)
        device_ns = max(device_ns, start_ns + 3000)
        kernel_ns = generator.randrange(1500, 20_000)
        name, kernel = generator.choice(_NAMES), f"void at::native::k{generator.randrange(40)}<float>(int)"
        yield _complete("cpu_op", name, 7, start_ns, now_ns - start_ns, f',"args":{{"External id":{number}}}')
        correlation = f',"args":{{"correlation":{number}}}'
        yield _complete("cuda_runtime", "cudaLaunchKernel", 7, start_ns + 900, 1500, correlation)
        args = f',"args":{{"stream":9,"correlation":{number}}}'
        yield _complete("kernel", kernel, 9, device_ns, kernel_ns, args)
        for phase, tid, time_ns in (("s", 7, start_ns + 900), ("f", 9, device_ns)):
            ts = f"{_FIRST_US + time_ns // 1000}.{time_ns % 1000:03}"
            yield f'{{"ph":"{phase}","id":{number},"pid":7,"tid":{tid},"ts":{ts},"cat":"ac2g","name":"ac2g"}}'
        device_ns += kernel_ns


def begins_and_ends(generator: random.Random) -> Iterator[str]:
    """Spans that begin and end in two events."""
    now_ns, inside = 0, list[str]()
    while True:
        now_ns += generator.randrange(100, 20_000)
        phase = "E" if inside and (len(inside) == 12 or generator.random() < 0.5) else "B"
        name = inside.pop() if phase == "E" else generator.choice(_NAMES)
        if phase == "B":
            inside.append(name)
        yield f'{{"name":"{name}","cat":"x","ph":"{phase}","pid":1,"tid":1,"ts":{_time(now_ns)}}}'


def counters(generator: random.Random) -> Iterator[str]:
    """Samples of five counters."""
    for number in count():
        value = generator.randrange(10**6)
        yield (
            f'{{"ph":"C","name":"c{number % 5}","pid":7,"ts":{_time(number * 1_300)},"args":{{"value":{value}}}}}'
        )


def _requests(generator: random.Random, ids: Iterator[object]) -> Iterator[str]:
    """Requests, each with the next of these ids."""
    now_ns = 0
    for number, one in enumerate(ids):
        now_ns += generator.randrange(1000, 9000)
        args = f',"args":{{"id":"{one}"}}'
        yield _complete("serving", "request", number % 8, now_ns, generator.randrange(900_000), args)


def unique_arguments(generator: random.Random) -> Iterator[str]:
    """Requests with an id of their own, each of which a trace has to keep as text."""
    return _requests(generator, (f"request-{number}" for number in count()))


def random_arguments(generator: random.Random) -> Iterator[str]:
    """Requests with a random id of their own: text that nothing makes shorter."""
    return _requests(generator, (UUID(int=generator.getrandbits(128)) for _ in count()))


RANDOM_ARGUMENTS = "random ids as arguments"
KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "operators without arguments": operators,
    "Python calls": python_calls,
    "short operators with a kernel each": launches,
    "begins and ends": begins_and_ends,
    "counters": counters,
    "arguments that never repeat": unique_arguments,
    RANDOM_ARGUMENTS: random_arguments,
}


def write_dense_trace(kind: str, events: int, path: Path) -> None:
    """Write a trace of `events` events of a kind."""
    made = KINDS[kind](random.Random(1))
    with path.open("w", encoding="ascii") as file:
        file.write('{"schemaVersion":1,"traceEvents":[\n' + next(made))
        for _ in range(events - 1):
            file.write(",\n" + next(made))
        file.write("\n]}\n")
