"""The page Ranks: what the server says of a folder of summaries, and how traces are opened from it."""

import json
import math

import numpy as np
import pyarrow.ipc
import pytest

import kinetoscope
from kinetoscope.summaries.summary import save_summaries
from kinetoscope.viewer.open_traces import Given, Offer, is_job
from kinetoscope.viewer.server.routes import respond
from tests.summaries.test_job import COMPUTE_NS, TRANSFER_NS, rank_trace

STEPS, RANKS, LATE_NS = 6, 4, 2_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four ranks, of which the last is late; the trace of rank 0 is gone, that of rank 1 was never saved."""
    place = tmp_path_factory.mktemp("job")
    arrivals = [[COMPUTE_NS + rank * 1_000 + (rank == 3) * LATE_NS] * STEPS for rank in range(RANKS)]
    for rank, own in enumerate(arrivals):
        rank_trace(rank, own, arrivals[3]).save(place / f"rank{rank}.ktrace")
    paths = [place / f"rank{rank}.ktrace" for rank in range(RANKS)]
    kinetoscope.summarize(*paths, output=place / "summaries")
    paths[0].unlink()
    (place / "summaries" / "rank-00001.parquet").unlink()
    with kinetoscope.open(paths[1]) as trace:
        save_summaries(trace, place / "summaries", "")
    return place


@pytest.fixture(scope="module")
def job(folder):
    return kinetoscope.Job.open(folder / "summaries")


def asked(job, path, opened=None, **query):
    return respond(
        [Offer("job", job=job)], f"api/0/{path}", {key: str(one) for key, one in query.items()}, opened=opened
    )


def told(response):
    assert response.status == 200, response.body
    return json.loads(response.body)


def table(response):
    with pyarrow.ipc.open_stream(response.body) as reader:
        return reader.read_all()


def test_a_folder_of_summaries_is_a_job_and_nothing_else_is(folder):
    assert is_job(str(folder / "summaries"))
    assert is_job(str(folder / "summaries" / "rank-00002.parquet"))
    assert not is_job(str(folder))
    with kinetoscope.open(folder / "rank2.ktrace") as trace:
        trace.save(folder / "trace.parquet")
    assert not is_job(str(folder / "trace.parquet"))
    offer = Given("summaries", folder / "summaries").offer
    assert (offer.trace, offer.problem, len(offer.job)) == (None, None, RANKS)
    (listed,) = told(respond([offer], "api/traces", {}))
    assert (listed["job"], listed["readable"]) == (True, True)


def test_the_map_has_each_step_of_each_rank(job):
    about = told(asked(job, "ranks"))
    assert (about["ranks"], about["steps"]) == (RANKS, [*range(STEPS)])
    assert about["notes"] == []
    steps = job.section("steps")
    for name, _ in about["measures"]:
        values = table(asked(job, "ranks/cells", by=name))["value"].to_numpy().reshape(RANKS, STEPS)
        if name == "holds_up_ns":
            # Compared with the median of the others; ranks that wait for others hold up nobody.
            assert values.tolist() == [[0] * STEPS, [0] * STEPS, [1_000] * STEPS, [LATE_NS + 2_000] * STEPS]
        else:
            assert np.array_equal(values.ravel(), steps[name].to_numpy())
    assert table(asked(job, "ranks/table"))["rank"].to_pylist() == [*range(RANKS)]
    assert told(asked(job, "ranks/findings"))["findings"][0]["code"]


def test_the_page_says_which_ranks_have_no_summary(folder):
    some = kinetoscope.Job.open(*(folder / "summaries" / f"rank-0000{rank}.parquet" for rank in (0, 2)))
    (note,) = told(asked(some, "ranks"))["notes"]
    assert note == "2 of 3 ranks have a summary here; without one: rank 1."


def test_a_rank_without_a_step_has_no_value_there(folder, tmp_path):
    rank_trace(9, [COMPUTE_NS] * 2, [COMPUTE_NS] * 2).save(tmp_path / "short.ktrace")
    kinetoscope.summarize(tmp_path / "short.ktrace", output=tmp_path / "out")
    mixed = kinetoscope.Job.open(folder / "summaries", tmp_path / "out")
    values = table(asked(mixed, "ranks/cells", by="duration_ns"))["value"].to_pylist()
    assert [math.isnan(one) for one in values] == [False] * (RANKS * STEPS + 2) + [True] * (STEPS - 2)


def test_a_cell_has_its_parts_and_who_came_last_to_its_collectives(job):
    facts = told(asked(job, "ranks/step", rank=1, step=2))
    parts = {title: (own, middle) for title, own, middle in facts["parts"]}
    assert parts["step"][0] == sum(own for title, (own, _) in parts.items() if title != "step")
    (one,) = facts["collectives"]
    assert (one["name"], one["ranks"], one["last_rank"]) == ("all_reduce", RANKS, 3)
    assert (one["late_ns"], one["last_ns"]) == (1_000, LATE_NS + 3_000)
    arrived = table(asked(job, "ranks/arrivals", collective=one["collective"])).to_pylist()
    assert [row["rank"] for row in arrived] == [*range(RANKS)]
    assert [row["late_ns"] for row in arrived] == [0, 1_000, 2_000, LATE_NS + 3_000]
    assert arrived[3]["duration_ns"] == TRANSFER_NS - 10


def test_the_traces_of_a_rank_and_of_a_median_one_are_opened(folder, job):
    opened = []

    def opener(path):
        opened.append(path)
        return len(opened)

    found = told(asked(job, "ranks/pair", opener, rank=3))
    assert (found["base"], found["new"], found["ranks"]) == (1, 2, [2, 3])
    assert opened == [str(folder / f"rank{rank}.ktrace") for rank in (2, 3)]


@pytest.mark.parametrize(
    ("path", "query", "status", "said"),
    [
        (
            "ranks/pair",
            {"rank": 0},
            409,
            "The trace of rank 0 is not at .*rank0.ktrace, where its summary says",
        ),
        ("ranks/pair", {"rank": 1}, 409, "The summary of rank 1 has no trace path"),
        ("ranks/pair", {"rank": 3}, 409, "cannot be opened from here"),
        ("ranks/step", {"rank": 7, "step": 0}, 400, "rank=7 is not valid"),
        ("ranks/step", {"rank": 1, "step": 99}, 400, "rank 1 has no step 99"),
        ("ranks/step", {"rank": 1}, 400, "step='' is not valid"),
        ("ranks/cells", {"by": "color"}, 400, "by='color' is not valid"),
        ("ranks/arrivals", {"collective": 999}, 400, "collective=999 is not valid"),
        ("ranks/nothing", {}, 404, "no such route"),
        ("overview", {}, 409, "shown by the page Ranks only"),
    ],
)
def test_wrong_requests_are_refused_with_a_sentence(job, path, query, status, said):
    found = asked(job, path, **query)
    assert found.status == status
    with pytest.raises(ValueError, match=said):
        raise ValueError(json.loads(found.body)["error"])


def test_the_viewer_opens_what_a_summary_names_once(folder):
    with kinetoscope.view(folder / "summaries", browser=False, wait=False, port=0) as viewer:
        path = str(folder / "rank3.ktrace")
        assert [viewer._opened(path), viewer._opened(path)] == [1, 1]


def test_a_job_is_not_compared_with_traces(folder, job):
    traces = [kinetoscope.open(folder / f"rank{rank}.ktrace") for rank in (2, 3)]
    offers = [Offer("job", job=job), *(Offer(f"rank {rank}", one) for rank, one in enumerate(traces))]
    about = told(respond(offers, "api/1/compare", {}))
    assert (about["base"], about["new"], about["traces"]) == (1, 2, ["", "rank 0", "rank 1"])
