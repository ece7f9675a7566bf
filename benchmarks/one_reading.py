"""Reads one trace once with one reader, in a process that does nothing else, and prints what that took.

Not a benchmark: `benchmarks.reading` runs it, on one core. It imports little, since memory is measured from where it begins.
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
    """`VmRSS` or `VmHWM` of this process, the most it ever held."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory a process holds: the benchmark needs Linux")


def ours(path: str) -> Callable[[], object]:
    """`kinetoscope.open`."""
    import kinetoscope
    import kinetoscope.formats.chrome.read

    return lambda: kinetoscope.open(path)


def with_orjson(path: str) -> Callable[[], object]:
    """`orjson.loads` alone, of text that is in memory already; the collector of cycles would only slow it down."""
    import orjson

    content = Path(path).read_bytes()
    gc.disable()
    return lambda: orjson.loads(content)


def with_hta(path: str) -> Callable[[], object]:
    """The parser of HolisticTraceAnalysis, as its `TraceAnalysis` calls it."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    logging.disable(logging.WARNING)
    return lambda: parse_trace_dataframe(path, ParserConfig.get_default_cfg())


READERS = {"ours": ours, "orjson": with_orjson, "HolisticTraceAnalysis": with_hta}


def main(name: str, path: str) -> None:
    """Read, and print seconds by the processor's clock and by the wall's, and the growth of memory at its largest."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    read = READERS[name](path)
    before_bytes = status_bytes("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    kept = read()
    cpu_seconds, wall_seconds = time.process_time() - cpu, time.perf_counter() - wall
    peak_bytes = status_bytes("VmHWM") - before_bytes
    print(json.dumps({"cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds, "peak_bytes": peak_bytes}))
    sys.stdout.flush()
    del kept
    # Letting go of millions of dictionaries one by one is no part of it.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
