"""Read a trace once with one reader, and print time and memory.

This is not a benchmark; `benchmarks.reading` runs it on one core. It imports little, because memory is measured from its start.
"""

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def status_bytes(key: str) -> int:
    """Return `VmRSS` or `VmHWM` (the peak) of this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark needs Linux, to read the memory of a process from /proc")


def ours(path: str) -> Callable[[], object]:
    """Read with `kinetoscope.open`."""
    import kinetoscope
    import kinetoscope.formats.chrome.read

    return lambda: kinetoscope.open(path)


def with_orjson(path: str) -> Callable[[], object]:
    """Parse text in memory with `orjson.loads`, with the garbage collector off, which only slows it down."""
    import orjson

    content = Path(path).read_bytes()
    gc.disable()
    return lambda: orjson.loads(content)


def with_hta(path: str) -> Callable[[], object]:
    """Read with the parser of HolisticTraceAnalysis, as its `TraceAnalysis` does."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    logging.disable(logging.WARNING)
    return lambda: parse_trace_dataframe(path, ParserConfig.get_default_cfg())


READERS = {"ours": ours, "orjson": with_orjson, "HolisticTraceAnalysis": with_hta}


def main(name: str, path: str) -> None:
    """Read, and print processor and wall time in seconds, and the peak growth of memory."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    read = READERS[name](path)
    before_bytes = status_bytes("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    result = read()
    cpu_seconds, wall_seconds = time.process_time() - cpu, time.perf_counter() - wall
    peak_bytes = status_bytes("VmHWM") - before_bytes
    print(json.dumps({"cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds, "peak_bytes": peak_bytes}))
    sys.stdout.flush()
    del result
    # Freeing millions of dictionaries is not part of reading.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
