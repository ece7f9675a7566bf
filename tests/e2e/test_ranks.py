"""Jobs of 2 and 4 processes in the environment of torchrun: what each rank writes, and what its collectives were."""

import json
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.formats.execution_trace.read import read_execution_trace
from tests.support.ranks import run_ranks
from tests.support.strict_json import read_strictly

COLLECTIVES = """
group = dist.new_group([0, 1])
x = torch.ones(4)
dist.all_reduce(x)  # gloo's threads are there from now on
parts = [torch.zeros(4) for _ in range(ranks)]

def save(session, name):
    session.trace.save(f"{name}.{rank}.ktrace")

def collectives(name, **options):
    with kinetoscope.profile(activities=CPU, **options) as session:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.barrier()
        if rank < 2:
            dist.broadcast(x, 0, group=group)
        dist.all_gather(parts, x)
        dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2 * ranks))
        dist.reduce_scatter(torch.zeros(2, dtype=torch.float64), [torch.ones(2, dtype=torch.float64)] * ranks)
        dist.all_to_all_single(torch.zeros(2 * ranks), torch.ones(2 * ranks))
        if rank == 0: dist.send(x, 1)
        if rank == 1: dist.recv(x, 0)
        dist.gather(x, parts if rank == 0 else None)
        dist.scatter(x, parts if rank == 0 else None)
        dist.reduce(x, 0, op=dist.ReduceOp.MAX)
    save(session, name)
    return session

observer = kinetoscope.ExecutionTraceObserver().register_callback("et.{rank}.json")
session = collectives("native", record_shapes=True, path="job.recording", execution_trace_observer=observer)
session.export_chrome_trace(f"trace.{rank}.json")
kinetoscope.tensorboard_trace_handler("board")(session)
"""
OF_TWO = """
# An execution trace would make torch hand out the inputs all the same.
collectives("without shapes")
observer = kinetoscope.ExecutionTraceObserver().register_callback("et.kineto.{rank}.json")
collectives("kineto", record_shapes=True, engine="kineto", execution_trace_observer=observer)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(8, 4, bias=False)
fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
y = torch.ones(3, 8)
for _ in range(2): model(y).sum().backward()
with kinetoscope.profile(activities=CPU, record_shapes=True) as session:
    model(y).sum().backward()
save(session, "fsdp")

with kinetoscope.profile(activities=CPU, record_shapes=True) as session:
    dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1]))
save(session, "new group")

warnings.simplefilter("ignore")
x, y = torch.ones(4), torch.ones(6)
with kinetoscope.profile(activities=CPU, record_shapes=True) as session:
    dist.all_reduce_coalesced([x, y])
    dist.all_gather_coalesced([[torch.zeros(4), torch.zeros(6)] for _ in range(ranks)], [x, y])
    dist.all_to_all([torch.zeros(2) for _ in range(ranks)], [torch.ones(2) for _ in range(ranks)])
    dist.all_reduce(torch.tensor(1.0))
    dist.all_reduce(torch.zeros(0))
    dist.monitored_barrier()
save(session, "several tensors")
"""
OF_FOUR = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
y = torch.ones(3, 8)
for _ in range(2): model(y).sum().backward()
with kinetoscope.profile(activities=CPU, record_shapes=True) as session:
    model(y).sum().backward()
save(session, "ddp")
"""
pytestmark = pytest.mark.slow


class Job:
    """A job of some ranks that has run, and its files."""

    def __init__(self, folder: Path, ranks: int, program: str) -> None:
        self.folder, self.ranks = folder, ranks
        run_ranks(COLLECTIVES + program, folder, ranks)

    def traces(self, name: str) -> list[kinetoscope.Trace]:
        """The traces that the ranks saved by this name."""
        return [kinetoscope.open(self.folder / f"{name}.{rank}.ktrace") for rank in range(self.ranks)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("two"), 2, OF_TWO)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("four"), 4, OF_FOUR)


@pytest.mark.parametrize("job", ["two", "four"])
def test_what_every_rank_calls_is_known_with_groups_and_sizes(job, request):
    job = request.getfixturevalue(job)
    ranks = job.ranks
    for rank, trace in enumerate(job.traces("native")):
        rows = trace.table("collectives").to_pylist()
        found = [
            (row["name"], row["bytes"], row["input_elements"], row["output_elements"], row["dtype"])
            for row in rows
        ]
        edge = [("send", 16, 4, 0, "float32")] if rank == 0 else [("recv", 16, 0, 4, "float32")]
        root = rank == 0
        assert found == [
            ("all_reduce", 16, 4, 4, "float32"),
            ("all_reduce", 16, 4, 4, "float32"),
            ("barrier", 0, 0, 0, None),
            *([("broadcast", 16, 4, 4, "float32")] if rank < 2 else []),
            ("all_gather", 16 * ranks, 4, 4 * ranks, "float32"),
            ("reduce_scatter", 8 * ranks, 2 * ranks, 2, "float32"),
            ("reduce_scatter", 16 * ranks, 2 * ranks, 2, "float64"),
            ("all_to_all", 8 * ranks, 2 * ranks, 2 * ranks, "float32"),
            *(edge if rank < 2 else []),
            ("gather", 16 * ranks if root else 16, 4, 4 * ranks if root else 0, "float32"),
            ("scatter", 16 * ranks if root else 16, 4 * ranks if root else 0, 4, "float32"),
            ("reduce", 16, 4, 4, "float32"),
        ]
        everybody = json.dumps(list(range(ranks)))
        for row in rows:
            in_pair = row["name"] == "broadcast"
            assert row["group_size"] == (2 if in_pair else ranks)
            assert row["group_ranks"] == ("[0, 1]" if in_pair else everybody)
            assert (row["rank"], row["group_rank"], row["backend"]) == (rank, rank, "gloo")
            assert row["transfers"] == (ranks if row["dtype"] == "float64" else 1)
            assert row["transfer_start_ns"] >= row["start_ns"]
        assert len({row["transfer_span"] for row in rows}) == len(rows)
        by_name = {row["name"]: row for row in rows}
        assert [row["is_async"] for row in rows[:3]] == [False, True, False]
        # A transfer may be over before its caller asks: then nothing was waited for.
        assert rows[0]["waited_ns"] >= 0
        assert rows[1]["waited_ns"] is None
        assert by_name["reduce"]["reduction"] == "MAX"
        assert by_name["all_reduce"]["reduction"] == "SUM"
        assert (by_name["reduce"]["peer"], by_name["gather"]["peer"]) == (0, 0)


def test_what_every_rank_writes_says_which_rank_it_is(two):
    folder = two.folder
    assert sorted(path.name for path in folder.glob("*.recording")) == [
        "job.rank0.recording",
        "job.rank1.recording",
    ]
    assert sorted(path.name.split(".")[0].rpartition("_")[2] for path in (folder / "board").iterdir()) == [
        "rank0", "rank1",
    ]  # fmt: skip
    for rank, trace in enumerate(two.traces("native")):
        chrome = read_strictly((folder / f"trace.{rank}.json").read_text(encoding="utf-8"))
        told = chrome["distributedInfo"]
        assert {key: told[key] for key in ("backend", "rank", "world_size", "pg_count")} == {
            "backend": "gloo", "rank": rank, "world_size": 2, "pg_count": 2,
        }  # fmt: skip
        assert [group["ranks"] for group in told["pg_config"]] == [[0, 1], [0, 1]]
        assert chrome["rank"] == trace.info["rank"] == rank
        assert set(trace.table("spans")["rank"].to_pylist()) == {rank}
        spans = trace.table("spans")
        kinds = dict(zip(spans["name"].to_pylist(), spans["kind"].to_pylist(), strict=True))
        assert kinds["gloo:all_reduce"] == "collective"
        assert kinds["c10d::allreduce_"] == "operator"
        categories = {event["name"]: event["cat"] for event in chrome["traceEvents"] if event["ph"] == "X"}
        assert categories["gloo:all_reduce"] == "user_annotation"
        assert categories["c10d::allreduce_"] == "cpu_op"
        execution = read_execution_trace(folder / f"et.{rank}.json")
        groups = execution.nodes["name"].index("## process_group:init ##")
        assert "default_pg" in execution.nodes["inputs"][groups]
        joined = trace.table("execution", execution_trace=execution).to_pylist()
        assert {row["name"] for row in joined if row["match"] == "execution trace only"} <= {
            "## process_group:init ##",
        }  # fmt: skip
        assert sum(row["match"] == "trace only" for row in joined) <= 1


def test_without_shapes_the_calls_and_their_times_are_known_but_not_their_sizes(two):
    for trace in two.traces("without shapes"):
        rows = trace.table("collectives").to_pylist()
        assert len(rows) == 12
        assert {row["bytes"] for row in rows if row["name"] != "barrier"} == {None}
        assert {(row["group"], row["is_async"]) for row in rows} == {(None, None)}
        assert sum(row["transfers"] for row in rows) >= 13


def test_torchs_own_collector_sees_the_same_calls(two):
    for trace in two.traces("kineto"):
        rows = trace.table("collectives").to_pylist()
        assert [row["name"] for row in rows][:5] == [
            "all_reduce",
            "all_reduce",
            "barrier",
            "broadcast",
            "all_gather",
        ]
        reduced = rows[0]
        assert (reduced["backend"], reduced["is_async"], reduced["transfers"]) == ("gloo", False, 1)


def test_ddp_reduces_its_gradients_in_backward(four):
    for trace in four.traces("ddp"):
        reduced = [row for row in trace.table("collectives").to_pylist() if row["name"] == "all_reduce"]
        assert [(row["bytes"], row["phase"], row["is_async"]) for row in reduced] == [
            (4 * (8 * 4 + 4), "backward", True)
        ]
        assert reduced[0]["transfer_ns"] > 0


def test_fsdp_gathers_its_parameters_and_scatters_its_gradients(two):
    for trace in two.traces("fsdp"):
        rows = trace.table("collectives").to_pylist()
        names = [row["name"] for row in rows]
        assert "all_gather" in names
        assert "reduce_scatter" in names
        gathered = next(row for row in rows if row["name"] == "all_gather")
        assert (gathered["output_bytes"], gathered["input_bytes"]) == (4 * 32, 4 * 16)


def test_a_group_that_is_made_while_recording_belongs_to_the_trace(two):
    for trace in two.traces("new group"):
        row = trace.table("collectives").to_pylist()[-1]
        assert (row["name"], row["group_ranks"]) == ("all_reduce", "[0, 1]")


def test_calls_with_several_tensors_and_with_none(two):
    for trace in two.traces("several tensors"):
        rows = trace.table("collectives").to_pylist()
        assert [(row["name"], row["input_bytes"], row["output_bytes"], row["transfers"]) for row in rows] == [
            ("all_reduce", 40, 40, 1),
            ("all_gather", 40, 80, 1),
            ("all_to_all", 16, 16, 1),
            ("all_reduce", 4, 4, 1),
            ("all_reduce", 0, 0, 1),
            ("barrier", 0, 0, 0),
        ]
        assert {row["is_async"] for row in rows[:-1]} == {False}
