"""Traces reduced on every engine: real processes, a real Dask cluster and a real Ray cluster of this machine."""

import builtins
import os
import sys

import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope import ArgumentError, FormatError, MissingDependencyError, StateError
from kinetoscope.cli import main
from kinetoscope.summaries.engines import ENGINES, outcomes
from tests.summaries.test_job import COMPUTE_NS, rank_trace
from tests.support.effort import STRESS
from tests.support.s3 import s3, s3_server
from tests.support.tasks import always_killed, killed_once, killed_with_neighbor, name_of

__all__ = ["s3", "s3_server"]

NAMES = ["one", "two", "victim", "three", "four"]
SEVERAL = [name for name in ENGINES if name != "here"]


@pytest.fixture(scope="module", autouse=True)
def one_cluster():
    """The clusters of this machine, started once; what they set in this process, later tests must not see."""
    before, own_print = dict(os.environ), builtins.print
    distributed, ray = pytest.importorskip("distributed"), pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
    ) as dask:
        yield {"dask": dask.scheduler_address}
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)
    # Ray puts a function of its own in its place.
    builtins.print = own_print


@pytest.fixture
def run(one_cluster, tmp_path):
    def run(engine, function, names):
        items = [str(tmp_path / name) for name in names]
        done = outcomes(engine, function, items, workers=2, address=one_cluster.get(engine))
        found = dict(done)
        assert sorted(found) == [*range(len(names))]
        return [found[place] for place in range(len(names))]

    return run


@pytest.mark.parametrize("engine", ENGINES)
def test_each_item_has_its_result_or_what_failed(run, engine):
    found = run(engine, name_of, ["one", "wrong", "two"])
    assert (found[0], found[2]) == ("one", "two")
    assert isinstance(found[1], FormatError)
    assert str(found[1]).endswith("is wrong")


@pytest.mark.parametrize("engine", SEVERAL)
def test_what_dies_with_its_process_runs_again(run, engine):
    assert run(engine, killed_once, NAMES) == NAMES


# Dask starts each of its processes again, which takes half a minute.
@pytest.mark.parametrize("engine", [one for one in SEVERAL if STRESS or one != "dask"])
def test_what_kills_each_process_takes_no_other_item_with_it(run, engine):
    found = run(engine, always_killed, NAMES)
    assert [one for one in found if isinstance(one, str)] == ["one", "two", "three", "four"]
    assert isinstance(found[2], Exception)


def test_dask_blames_no_item_for_a_neighbor_that_kills_their_worker(tmp_path):
    import dask
    from distributed import Client, LocalCluster

    items = [str(tmp_path / name) for name in ("victim", "neighbor")]
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0", host="127.0.0.1") as cluster,
    ):
        address = cluster.scheduler_address
        found = dict(outcomes("dask", killed_with_neighbor, items, address=address))
        # A cluster that is closed while it starts a worker anew fails.
        with Client(address) as client:
            client.wait_for_workers(1)
    assert found[1] == "neighbor"
    assert isinstance(found[0], Exception)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The traces of four ranks, of which the last is late."""
    folder = tmp_path_factory.mktemp("ranks")
    arrivals = [[COMPUTE_NS + (rank == 3) * 2_000_000 for _ in range(12)] for rank in range(4)]
    for rank, own in enumerate(arrivals):
        rank_trace(rank, own, arrivals[3]).save(folder / f"rank{rank}.ktrace")
    return folder


@pytest.mark.parametrize("engine", ENGINES)
def test_summaries_are_those_of_one_process(ranks, one_cluster, tmp_path, engine):
    files = sorted(ranks.iterdir())
    done = []
    job = kinetoscope.summarize(
        *files,
        output=tmp_path,
        engine=engine,
        workers=2,
        address=one_cluster.get(engine),
        progress=done.append,
    )
    assert sorted(done) == [str(file) for file in files]
    alone = kinetoscope.summarize(*files, output=tmp_path / "alone")
    assert job.summaries.equals(alone.summaries)
    assert [row["rank"] for row in job.stragglers().to_pylist()] == [3]


@pytest.mark.parametrize("engine", ["here", "processes"])
def test_a_damaged_trace_costs_no_other(ranks, tmp_path, engine):
    files = sorted(ranks.iterdir())
    wrong = tmp_path / "wrong.json"
    wrong.write_text("nothing")
    said = rf"1 trace of 5 could not be summarized, the first one {wrong}: .*\(4 summaries of the others in "
    with pytest.raises(StateError, match=said):
        kinetoscope.summarize(files[0], wrong, *files[1:], output=tmp_path / "out", engine=engine, workers=2)
    assert len(kinetoscope.Job.open(tmp_path / "out")) == 4
    with pytest.raises(FormatError):
        kinetoscope.summarize(wrong, output=tmp_path / "out", engine=engine)


def test_traces_of_an_object_store_are_found_by_a_pattern(ranks, one_cluster, s3, tmp_path):
    for file in ranks.iterdir():
        s3.put(str(file), f"traces/run/{file.name}")
    command = ["summarize", "s3://traces/run/*.ktrace", "-o", str(tmp_path), "--workers", "2"]
    for engine in ("here", "processes"):
        made = CliRunner().invoke(main, [*command, "--engine", engine])
        assert (made.exit_code, made.stdout) == (0, f"{tmp_path}: 4 summaries\n")
    assert len(kinetoscope.Job.open(tmp_path)) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"engine": "spark"}, "engine='spark' is not valid: use one of here, processes, dask, ray"),
        ({"engine": "processes", "workers": 0}, "workers=0 is not valid"),
        ({"engine": "processes", "address": "tcp://x"}, "uses this machine only; use dask or ray"),
        ({"address": "tcp://x"}, "uses this machine only; use dask or ray"),
    ],
)
def test_wrong_arguments_are_refused(ranks, tmp_path, arguments, said):
    with pytest.raises(ArgumentError, match=said):
        kinetoscope.summarize(ranks / "rank0.ktrace", output=tmp_path, **arguments)


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_cluster_that_is_not_installed_is_named_with_what_installs_it(ranks, tmp_path, monkeypatch, engine):
    monkeypatch.setitem(sys.modules, {"dask": "distributed"}.get(engine, engine), None)
    with pytest.raises(MissingDependencyError, match=rf'pip install "kinetoscope\[{engine}\]"'):
        kinetoscope.summarize(ranks / "rank0.ktrace", output=tmp_path, engine=engine)
