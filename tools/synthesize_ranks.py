"""Make the ranks of a large job from the real traces of a small one: summaries, or whole traces.

    python -m tools.synthesize_ranks TRACE... -o FOLDER [--ranks 1000] [--steps 20] [--groups dp=25,tp=8,pp=5]
        [--delay 17:input:5 ...] [--traces 17,18] [--seed 0]

Each TRACE is of one rank of the same job, with at least one step. The time that a rank takes from one collective to the next is
the median over the real ranks, with noise for each rank and step; each collective begins when its rank arrives, and ends for all ranks of
its group when the last one has arrived and the data is transferred. `--delay RANK:PHASE:PERCENT` makes one rank slower, in `input`,
`host` or `compute`, by a share of its own time in a step. Ranks of one machine share a clock, and machines have clocks of
their own with offset and drift.

FOLDER gets the summary of each rank, and of the ranks named by `--traces` also the trace, with the events of a real one at these times.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import kinetoscope
from benchmarks.big_traces import is_repeated, pattern_of
from kinetoscope.summaries.summary import file_name, file_of, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Times = NDArray[np.int64]

PHASES = {"input": "data_wait_ns", "host": "host_wait_ns", "compute": "compute_ns"}
OWN_PARTS = ("compute_ns", "copy_ns", "data_wait_ns", "host_wait_ns", "idle_ns")
# What torch calls them where it describes a collective.
_DESCRIBED = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
}
# The noise of a step and of a rank, as shares of the time.
_STEP_NOISE, _RANK_NOISE = 0.01, 0.003
_LATEST_START_NS = 2_000_000
_PAUSE_NS = 50_000
_EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Delay:
    """A rank that is slower than the others.

    Attributes:
        rank: The rank.
        phase: What takes it longer: `input`, `host` or `compute`.
        percent: How much longer, as a share of its own time in a step.
    """

    rank: int
    phase: str
    percent: float


@dataclass(frozen=True)
class Plan:
    """What job to make.

    Attributes:
        ranks: How many ranks.
        steps: How many steps.
        delays: The slower ranks.
        groups: The dimensions of the job with their sizes, the slowest first, such as `(("dp", 8), ("tp", 4))`; the product is `ranks`.
            The collectives of a step take turns in using them. Empty: all ranks are one group.
        ranks_per_host: How many ranks share a machine and its clock.
        largest_offset_ns: By how much clocks may be off, at most.
        largest_drift_ppm: By how much clocks may be too fast or too slow, at most.
        seed: Other numbers give other noise and clocks.
    """

    ranks: int = 1_000
    steps: int = 20
    delays: tuple[Delay, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    ranks_per_host: int = 8
    largest_offset_ns: int = 5_000_000
    largest_drift_ppm: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what makes no job."""
        if self.groups and int(np.prod([size for _, size in self.groups])) != self.ranks:
            raise ValueError(f"the sizes of {self.groups} do not multiply to {self.ranks} ranks")
        for delay in self.delays:
            if delay.phase not in PHASES or not 0 <= delay.rank < self.ranks:
                raise ValueError(
                    f"{delay} is not valid: rank below {self.ranks}, phase one of {', '.join(PHASES)}"
                )


class SyntheticJob:
    """A job that was computed and not run.

    Attributes:
        start_ns: When each step of each rank begins, on the one true clock.
        end_ns: When it ends.
        arrived_ns: When each rank arrives at each collective of each step.
        left_ns: When it leaves it.
        offset_ns: What the clock of each rank shows more than the true one at time 0.
        drift: By how much it is too fast, such as 1e-5.
    """

    start_ns: Times
    end_ns: Times
    arrived_ns: Times
    left_ns: Times

    def __init__(self, paths: Sequence[Path], plan: Plan) -> None:
        """Read the real traces, and compute when each rank arrives where."""
        self.plan = plan
        self._paths = list(paths)
        self._real = [_Real(path) for path in paths]
        counts = {len(one.arrived_ns) for one in self._real}
        if counts == {0} or len(counts) > 1:
            raise ValueError(
                f"the first steps of the traces have {sorted(counts)} collectives: need the same number, above 0"
            )
        random = np.random.default_rng(plan.seed)
        hosts = -(-plan.ranks // plan.ranks_per_host)
        self._host = np.arange(plan.ranks) // plan.ranks_per_host
        self.offset_ns = random.uniform(-1, 1, hosts)[self._host] * plan.largest_offset_ns
        self.drift = random.uniform(-1, 1, hosts)[self._host] * plan.largest_drift_ppm / 1e6
        self._began_ns = random.integers(0, _LATEST_START_NS, plan.ranks)
        self._simulate(random)

    def group_of(self, collective: int, rank: int) -> tuple[str, str, list[int]]:
        """The name, the dimension and the ranks of the group in which a rank runs a collective of a step."""
        if not self.plan.groups:
            return "0", "default_pg", [*range(self.plan.ranks)]
        axis = collective % len(self.plan.groups)
        number = self._group_numbers(collective)
        name = self.plan.groups[axis][0]
        return f"{name}{number[rank]}", name, np.flatnonzero(number == number[rank]).tolist()

    def summaries(self, sources: dict[int, str] | None = None) -> Iterator[pa.Table]:
        """The summary of each rank; `sources` says where the traces of some are."""
        for rank in range(self.plan.ranks):
            yield self.summary(rank, (sources or {}).get(rank, ""))

    def summary(self, rank: int, source: str = "") -> pa.Table:
        """The summary of a rank: that of a real one with the times of this job."""
        real = self._real[rank % len(self._real)]
        starts, ends = (self._local(rank, times[rank]) for times in (self.start_ns, self.end_ns))
        arrived, left = (self._local(rank, times[rank]) for times in (self.arrived_ns, self.left_ns))
        steps, each = self.plan.steps, arrived.shape[1]
        parts = self._parts(rank, ends - starts)
        numbers = real.step["step"] + np.arange(steps)
        step_columns = {"step": numbers, "start_ns": starts, "duration_ns": ends - starts, **parts}
        groups = [self.group_of(collective, rank) for collective in range(each)]
        columns = {
            "step": np.repeat(numbers, each),
            "start_ns": arrived.ravel(),
            "duration_ns": (left - arrived).ravel(),
            "exposed_ns": (left - arrived).ravel(),
            "group": [name for name, _, _ in groups] * steps,
            "number": np.tile(real.numbers_within(groups), steps),
        }
        host = int(self._host[rank])
        facts: dict[str, Any] = {
            "rank": rank,
            "world_size": self.plan.ranks,
            "host": f"host{host:03d}",
            "process": 1000 + rank,
            "boot_id": f"boot of host{host:03d}",
            "start_monotonic_ns": int(self._clock(rank, self._began_ns[rank])),
            "start_realtime_ns": _EPOCH_NS + int(self._clock(rank, self._began_ns[rank])),
            "duration_ns": int(ends[-1]),
            "source": source,
        }
        table = real.summary
        for name, value in facts.items():
            place = table.schema.get_field_index(name)
            table = table.set_column(
                place, table.schema.field(place), pa.array([value], table.schema.types[place])
            )
        named = list({group[0]: group for group in groups}.values())
        described = {
            "group": [name for name, _, _ in named],
            "description": [dimension for _, dimension, _ in named],
            "ranks": [json.dumps(ranks) for _, _, ranks in named],
            "size": [len(ranks) for _, _, ranks in named],
        }
        table = _with_records(table, "groups", np.zeros(0, np.int64), described)
        table = _with_records(table, "steps", np.zeros(steps, np.int64), step_columns)
        return _with_records(table, "collectives", np.tile(real.collectives, steps), columns)

    def trace_text(self, rank: int) -> bytes:
        """The trace of a rank as Kineto would write it: the events of a real one, at the times of this job."""
        real = self._real[rank % len(self._real)]
        known = [
            real.start_ns,
            *np.stack([real.arrived_ns, real.left_ns], axis=1).ravel().tolist(),
            real.end_ns,
        ]
        content = self._of_rank(real, rank)
        repeated = pattern_of(json.dumps(content).encode(), "")
        # The pattern counts from its first event, the trace perhaps from another one.
        shift = real.start_ns - _first_step_ns(content)
        epoch = _EPOCH_NS + int(self._clock(rank, self._began_ns[rank]))
        pieces = []
        for step in range(self.plan.steps):
            inner = np.stack([self.arrived_ns[rank, step], self.left_ns[rank, step]], axis=1).ravel()
            then = self._local(rank, np.array([self.start_ns[rank, step], *inner, self.end_ns[rank, step]]))

            def moved(times_ns: Times, then: Times = then) -> Times:
                there = np.asarray(times_ns + shift, dtype=np.float64)
                inside = np.interp(there, known, then)
                outside = np.minimum(there - known[0], 0) + np.maximum(there - known[-1], 0)
                return np.asarray(inside + outside, dtype=np.int64)

            pieces.append(repeated.repetition(step, epoch, moved))
        return repeated.before + b",".join(pieces) + repeated.after

    def _simulate(self, random: np.random.Generator) -> None:
        """Let all ranks run all steps."""
        plan, each = self.plan, len(self._real[0].arrived_ns)
        own_ns = np.median([one.own_ns for one in self._real], axis=0)
        transfer_ns = np.maximum(np.min([one.left_ns - one.arrived_ns for one in self._real], axis=0), 1_000)
        noise = random.normal(1, _STEP_NOISE, (plan.steps, plan.ranks)) * random.normal(
            1, _RANK_NOISE, plan.ranks
        )
        shape = (plan.ranks, plan.steps, each)
        self.start_ns, self.end_ns = np.zeros((2, plan.ranks, plan.steps), np.int64)
        self.arrived_ns, self.left_ns = np.zeros((2, *shape), np.int64)
        self._extra_ns = {phase: np.zeros(plan.ranks) for phase in PHASES}
        for delay in plan.delays:
            self._extra_ns[delay.phase][delay.rank] += own_ns.sum() * delay.percent / 100
        numbers = [self._group_numbers(collective) for collective in range(each)]
        now = np.full(plan.ranks, _LATEST_START_NS, dtype=np.int64)
        spread = own_ns / own_ns.sum()
        for step in range(plan.steps):
            self.start_ns[:, step] = now
            for place in range(each + 1):
                late = (self._extra_ns["host"] + self._extra_ns["compute"]) * spread[place]
                late = late + self._extra_ns["input"] * (place == 0)
                now = now + (own_ns[place] * noise[step] + late).astype(np.int64)
                if place < each:
                    self.arrived_ns[:, step, place] = now
                    last = np.zeros(numbers[place].max() + 1, dtype=np.int64)
                    np.maximum.at(last, numbers[place], now)
                    now = last[numbers[place]] + int(transfer_ns[place])
                    self.left_ns[:, step, place] = now
            self.end_ns[:, step] = now
            now = now + _PAUSE_NS

    def _group_numbers(self, collective: int) -> Times:
        """For each rank the number of its group in a collective."""
        ranks = np.arange(self.plan.ranks)
        if not self.plan.groups:
            return np.zeros(self.plan.ranks, dtype=np.int64)
        sizes = [size for _, size in self.plan.groups]
        places = list(np.unravel_index(ranks, sizes))
        del places[collective % len(sizes)], sizes[collective % len(sizes)]
        return np.asarray(np.ravel_multi_index(places, sizes) if sizes else 0 * ranks, dtype=np.int64)

    def _clock(self, rank: int, true_ns: Any) -> Any:
        """What the clock of a rank shows."""
        return true_ns * (1 + self.drift[rank]) + self.offset_ns[rank]

    def _local(self, rank: int, true_ns: Times) -> Times:
        """Times since the start of the trace of a rank, by its clock."""
        return np.asarray((true_ns - self._began_ns[rank]) * (1 + self.drift[rank]), dtype=np.int64)

    def _parts(self, rank: int, duration_ns: Times) -> dict[str, Times]:
        """The parts of the steps of a rank, which add up to their durations."""
        real = self._real[rank % len(self._real)].step
        waits = (self.left_ns[rank] - self.arrived_ns[rank]).sum(axis=1)
        extra = {PHASES[phase]: times[rank] for phase, times in self._extra_ns.items()}
        own = np.maximum(duration_ns - waits - sum(extra.values()), 0)
        whole = max(1, sum(real[name] for name in OWN_PARTS))
        parts = {name: (own * real[name] / whole + extra.get(name, 0)).astype(np.int64) for name in OWN_PARTS}
        parts["communication_ns"] = duration_ns - sum(parts.values())
        return parts

    def _of_rank(self, real: _Real, rank: int) -> dict[str, Any]:
        """The JSON of a real trace, under the name of another rank and with the groups of this job."""
        content = json.loads(real.text)
        content["distributedInfo"] = content.get("distributedInfo", {}) | {
            "rank": rank,
            "world_size": self.plan.ranks,
        }
        kernels = [
            one for one in content["traceEvents"] if one.get("cat") == "kernel" and "nccl" in one["name"]
        ]
        for place, kernel in enumerate(sorted(kernels, key=lambda one: one["ts"])):
            name, dimension, ranks = self.group_of(place, rank)
            kernel["args"] |= {
                "Collective name": _DESCRIBED.get(real.names[place], real.names[place]),
                "Process Group Name": name,
                "Process Group Description": dimension,
                "Process Group Ranks": str(ranks),
                "Group size": len(ranks),
            }
        return dict(content)


class _Real:
    """A real trace of which ranks are made: its first step, with the collectives in it."""

    def __init__(self, path: Path) -> None:
        with kinetoscope.open(path) as trace:
            self.summary = summary_of(trace, "")
        record = self.summary.to_pylist()[0]
        if not record["steps"]:
            raise ValueError(f"{path} has no steps")
        self.step = record["steps"][0]
        self.start_ns = self.step["start_ns"]
        self.end_ns = self.start_ns + self.step["duration_ns"]
        inside = [
            (place, one)
            for place, one in enumerate(record["collectives"])
            if self.start_ns <= one["start_ns"] and one["start_ns"] + one["duration_ns"] <= self.end_ns
        ]
        self.collectives = np.array([place for place, _ in inside], dtype=np.int64)
        self.names = [one["name"] for _, one in inside]
        self.arrived_ns = np.array([one["start_ns"] for _, one in inside], dtype=np.int64)
        self.left_ns = self.arrived_ns + np.array([one["duration_ns"] for _, one in inside], dtype=np.int64)
        before = np.concatenate([[self.start_ns], self.left_ns])
        self.own_ns = np.maximum(np.concatenate([self.arrived_ns, [self.end_ns]]) - before, 0)
        data = path.read_bytes()
        self.text = gzip.decompress(data) if path.suffix == ".gz" else data

    def numbers_within(self, groups: Sequence[tuple[str, str, list[int]]]) -> Times:
        """The place of each collective among those of its name and group in the step."""
        seen: dict[tuple[str, str], int] = {}
        found = []
        for (group, _, _), name in zip(groups, self.names, strict=True):
            found.append(seen.get((group, name), 0))
            seen[group, name] = found[-1] + 1
        return np.array(found, dtype=np.int64)


def _first_step_ns(content: dict[str, Any]) -> int:
    """How long after the first event of a trace its first step begins."""
    events = [one for one in content["traceEvents"] if is_repeated(one)]
    steps = [one["ts"] for one in events if one["name"].startswith("ProfilerStep#")]
    return round((min(steps) - min(one["ts"] for one in events)) * 1000)


def _with_records(table: pa.Table, section: str, rows: Times, changed: dict[str, Any]) -> pa.Table:
    """A summary with some records of a section in the place of all, and other values in some of their fields."""
    place = table.schema.get_field_index(section)
    field = table.schema.field(place)
    records = table[section].combine_chunks().flatten().take(pa.array(rows))
    columns = [
        pa.array(changed[one.name], one.type) if one.name in changed else records.field(one.name)
        for one in records.type
    ]
    made = pa.StructArray.from_arrays(columns, fields=[*records.type])
    whole = pa.ListArray.from_arrays(pa.array([0, len(made)], pa.int32()), made)
    return table.set_column(place, field, whole.cast(field.type))


def main() -> None:
    """Write a job to a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("real", nargs="+", type=Path, metavar="TRACE", help="the trace of one rank, as JSON")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder")
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=_groups, default=(), help="such as dp=25,tp=8,pp=5")
    parser.add_argument("--delay", type=_delay, action="append", default=[], help="such as 17:input:5")
    parser.add_argument("--traces", type=_numbers, default=(), help="ranks of which to write the trace, too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    plan = Plan(ranks=options.ranks, steps=options.steps, groups=options.groups, seed=options.seed)
    job = SyntheticJob(options.real, replace(plan, delays=tuple(options.delay)))
    options.output.mkdir(parents=True, exist_ok=True)
    sources = {}
    for rank in options.traces:
        path = (options.output / f"rank{rank}.json.gz").absolute()
        path.write_bytes(gzip.compress(job.trace_text(rank), 1))
        sources[rank] = str(path)
    for rank, summary in enumerate(job.summaries(sources)):
        (options.output / file_name(rank)).write_bytes(file_of(summary))
    print(f"{options.output}: {plan.ranks:,} summaries, {len(sources)} traces")


def _groups(text: str) -> tuple[tuple[str, int], ...]:
    """Dimensions with their sizes."""
    pairs = [one.partition("=") for one in text.split(",")]
    return tuple((name, int(size)) for name, _, size in pairs)


def _delay(text: str) -> Delay:
    """A slower rank."""
    rank, phase, percent = text.split(":")
    return Delay(int(rank), phase, float(percent))


def _numbers(text: str) -> tuple[int, ...]:
    """Some ranks."""
    return tuple(int(one) for one in text.split(","))


if __name__ == "__main__":
    main()
