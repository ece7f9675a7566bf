"""Engines that reduce many traces: this process, several processes of this machine, Dask, or Ray.

An engine is a parallel map: it places the work, yields results as they complete, and retries work that died with its worker.

It applies a function to items and yields the index of each with its result or its failure. The function must be picklable and importable on the workers. `workers` is the
largest number of processes on this machine; `address` is that of a running cluster, None to start one here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from kinetoscope._errors import ArgumentError, StateError, checked_choice, needed

Result = TypeVar("Result")
Outcome = tuple[int, Result | Exception]

TOGETHER = 3
"""After this many rounds with a dying process, items run one by one to find the one that kills it."""


def here(
    function: Callable[[str], Result], items: Sequence[str], workers: int, address: str | None
) -> Iterator[Outcome[Result]]:
    """Process one item after the other in this process."""
    for index, item in enumerate(items):
        try:
            outcome: Result | Exception = function(item)
        except Exception as error:  # noqa: BLE001  (the other items are still wanted)
            outcome = error
        yield index, outcome


def processes(
    function: Callable[[str], Result], items: Sequence[str], workers: int, address: str | None
) -> Iterator[Outcome[Result]]:
    """Use processes of this machine. If one dies, for example out of memory, no other item is lost."""
    left = dict(enumerate(items))
    for _ in range(TOGETHER):
        if not left:
            return
        for index, outcome in _pooled(function, left, min(workers, len(left))):
            del left[index]
            yield index, outcome
    for index, item in left.items():
        alone = list(_pooled(function, {index: item}, 1))
        yield from alone or [(index, StateError("the process that read it was killed, several times"))]


def _pooled(
    function: Callable[[str], Result], items: dict[int, str], workers: int
) -> Iterator[Outcome[Result]]:
    """The outcomes of some items, except those waiting or running when a process died."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not a fork, which would lack the threads of this process, such as Arrow's.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        # Submitting fails as soon as a process has died.
        index_of = {}
        with suppress(BrokenProcessPool):
            for index, item in items.items():
                index_of[pool.submit(function, item)] = index
        for future in as_completed(index_of):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                continue
            if error is not None and not isinstance(error, Exception):
                raise error
            yield index_of[future], future.result() if error is None else error
    finally:
        pool.shutdown(cancel_futures=True)


def dask(
    function: Callable[[str], Result], items: Sequence[str], workers: int, address: str | None
) -> Iterator[Outcome[Result]]:
    """Use a Dask cluster: the one at `address` (`tcp://host:8786`), or a new one on this machine."""
    with needed(_MISSING.format("dask")):
        from distributed import Client, KilledWorker, LocalCluster, as_completed
    with ExitStack() as opened:
        cluster: Any = address
        if cluster is None:
            started = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            cluster = opened.enter_context(started)
        client = opened.enter_context(Client(cluster, set_as_default=False))
        # Dask retries work that was lost with a worker several times, but not items that raise.
        futures = client.map(function, items, pure=False)
        index_of = {future.key: index for index, future in enumerate(futures)}
        suspects: dict[int, Exception] = {}
        for future in as_completed(futures, loop=client.loop):
            failure = future.exception()
            if isinstance(failure, KilledWorker):
                suspects[index_of[future.key]] = failure
            else:
                yield index_of[future.key], future.result() if failure is None else failure
            future.release()
        # Dask blames all items of a dead worker: run suspects alone to find the one that kills it.
        for index, failure in suspects.items():
            again = client.submit(function, items[index], pure=False) if len(suspects) > 1 else None
            yield index, failure if again is None else again.exception() or again.result()


def ray(
    function: Callable[[str], Result], items: Sequence[str], workers: int, address: str | None
) -> Iterator[Outcome[Result]]:
    """Use a Ray cluster: the one at `address` (`auto`, `ray://host:10001`), or a new one on this machine."""
    with needed(_MISSING.format("ray")):
        import ray as cluster
    started_here = not cluster.is_initialized()
    if started_here:
        if address is None:
            # Disable usage reports of a cluster that exists for one command.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cluster.init(
            address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False
        )
    try:
        remote = cluster.remote(max_retries=TOGETHER)(function)
        waiting = {remote.remote(item): index for index, item in enumerate(items)}
        while waiting:
            (done, *_), _ = cluster.wait([*waiting])
            index = waiting.pop(done)
            try:
                outcome: Result | Exception = cluster.get(done)
            except cluster.exceptions.RayTaskError as error:
                outcome = error.cause
            except cluster.exceptions.RayError as error:
                outcome = error
            yield index, outcome
    finally:
        if started_here:
            cluster.shutdown()


ENGINES: dict[str, Callable[..., Iterator[Outcome[Any]]]] = {
    run.__name__: run for run in (here, processes, dask, ray)
}


def outcomes(
    engine: str,
    function: Callable[[str], Result],
    items: Sequence[str],
    *,
    workers: int | None = None,
    address: str | None = None,
) -> Iterator[Outcome[Result]]:
    """Apply a function to items on an engine.

    Args:
        engine: Its name, one of `ENGINES`.
        function: The function.
        items: Its arguments.
        workers: The largest number of processes on this machine; None for one per CPU.
        address: The address of a running cluster; None to start one here.

    Raises:
        ArgumentError: Unknown engine, an address for an engine without cluster, or too few workers.
    """
    checked_choice("engine", engine, tuple(ENGINES))
    if address is not None and engine not in ("dask", "ray"):
        raise ArgumentError(
            f"address={address!r}: the engine {engine!r} uses this machine only; use dask or ray"
        )
    if workers is not None and workers < 1:
        raise ArgumentError(f"workers={workers!r} is not valid: use at least 1")
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ENGINES[engine](function, items, max(1, min(len(items), workers or processors)), address)


_MISSING = (
    'engine={0!r} needs a package that is not installed: install it with `pip install "kinetoscope[{0}]"`.'
)
