"""What communication costs a job: transfers and waiting apart, links between pairs, and ranks by their coordinates."""

import pyarrow as pa
import pytest

import kinetoscope
from kinetoscope.summaries.communication import dimension_of
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.sections import Group
from kinetoscope.summaries.summary import summary_of
from tests.support.real_traces import ranks_of_a_job
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def rank_trace(rank, calls, world=8, **info):
    """A rank of one step that ran collectives: name, description and ranks of the group, elements, begin, end, and further facts."""
    builder = TraceBuilder().know("distributedInfo", {"rank": rank, "world_size": world})
    for key, value in info.items():
        builder.know(key, value)
    builder.thread("main")
    builder.stream(7)
    builder.step(0, 0, 100 * MS)
    for place, (name, description, ranks, elements, begin, end, *more) in enumerate(calls):
        facts = {
            "call": name,
            "group": f"{description}{ranks[0]}",
            "description": description,
            "type": "Float",
            "item_bytes": 4,
        }
        facts |= {"size": len(ranks), "ranks": str(ranks), "in_elements": elements, "out_elements": elements}
        facts |= dict(more)
        builder.runtime("cudaLaunchKernel", max(0, begin - 1_000), 10, correlation=place)
        builder.kernel("ncclDevKernel_Generic(x)", begin, end - begin, correlation=place, facts=facts)
    return builder.build()


def job_of(calls_of_ranks, **options):
    return Job(
        pa.concat_tables(
            [summary_of(rank_trace(rank, calls, **options)) for rank, calls in enumerate(calls_of_ranks)]
        )
    )


def test_waiting_for_late_ranks_is_separated_from_the_transfer():
    group = [0, 1]
    job = job_of(
        [
            [
                ("all_reduce", "tp", group, 500_000, 10 * MS, 20 * MS),
                ("broadcast", "tp", group, 10, 30 * MS, 31 * MS),
            ],
            [
                ("all_reduce", "tp", group, 500_000, 18 * MS, 20 * MS),
                ("broadcast", "tp", group, 10, 30 * MS, 31 * MS),
            ],
        ],
        world=2,
    )
    reduced, sent = job.exposed_communication().to_pylist()
    assert (reduced["name"], reduced["dimension"], reduced["size"], reduced["ranks"]) == (
        "all_reduce",
        "TP",
        2,
        2,
    )
    assert (reduced["total_ns"], reduced["transfer_ns"], reduced["waited_ns"]) == (6 * MS, 2 * MS, 4 * MS)
    assert (reduced["exposed_ns"], reduced["exposed_transfer_ns"]) == (6 * MS, 2 * MS)
    assert reduced["exposed_percent"] == pytest.approx(6.0)
    # 2 MB in 2 ms; of two ranks each sends half of it twice.
    assert reduced["bus_gb_per_s"] == pytest.approx(1.0)
    assert (sent["name"], sent["waited_ns"], sent["transfer_ns"]) == ("broadcast", None, MS)


@pytest.mark.parametrize("missing", [{2}, {0, 2}])
def test_who_waits_for_a_rank_without_a_summary_is_not_late(missing):
    """The last rank of each group is late; of the first group nobody, or only one other, has seen that."""

    def calls(rank):
        group = [rank // 3 * 3 + place for place in range(3)]
        begin = (15 if rank % 3 == 2 else 10) * MS
        return [("all_reduce", "tp", group, 1_000, begin, 20 * MS)]

    ranks = [rank for rank in range(9) if rank not in missing]
    job = Job(pa.concat_tables([summary_of(rank_trace(rank, calls(rank), world=9)) for rank in ranks]))
    held_up = [row["rank"] for row in job.ranks().to_pylist() if (row["holds_up_ns"] or 0) >= MS]
    assert held_up == [5, 8]
    # Of one step it cannot be said that they always are.
    assert job.stragglers().num_rows == 0
    assert job.notes[0].startswith(f"{len(ranks)} of 9 ranks have a summary here")


def test_a_slow_link_is_found_among_groups_of_two():
    def pair(first, transfer_ns):
        return ("all_reduce", "tp", [first, first + 1], 1_000_000, 10 * MS, 10 * MS + transfer_ns)

    times = {0: 2 * MS, 2: 2 * MS + 1_000, 4: 8 * MS, 6: 2 * MS - 1_000}
    job = job_of([[pair(rank // 2 * 2, times[rank // 2 * 2])] for rank in range(8)])
    slowest, *others = job.links().to_pylist()
    assert (slowest["rank"], slowest["peer"], slowest["bytes"]) == (4, 5, 4_000_000)
    assert slowest["times_slower"] == pytest.approx(4.0, rel=0.01)
    assert slowest["gb_per_s"] == pytest.approx(0.5)
    assert max(row["times_slower"] for row in others) < 1.01
    (found,) = [one for one in job.report.findings if one.code == "slow-link"]
    assert "Between rank 4 and rank 5 all_reduce takes" in found.finding["text"]
    assert found.share_percent == pytest.approx(6.0, rel=0.01)


def test_links_compare_sends_with_their_receives():
    ranks = [0, 1, 2, 3]

    def transfer(name, peer, begin, end):
        return (name, "default_pg", ranks, 1_000, begin, end, ("peer", peer))

    calls = [[] for _ in ranks]
    for step, (sender, receiver) in enumerate([(0, 1), (1, 2), (2, 3), (0, 1), (1, 2), (2, 3)]):
        begin = (10 + 10 * step) * MS
        lasts = 3 * MS if sender == 1 else MS
        calls[sender].append(transfer("send", receiver, begin, begin + lasts))
        # The receiver waits for the sender first.
        calls[receiver].append(transfer("recv", sender, begin - 5 * MS, begin + lasts))
    rows = job_of(calls, world=4).links().to_pylist()
    assert [(row["rank"], row["peer"], row["name"], row["transfers"]) for row in rows] == [
        (1, 2, "send", 2), (0, 1, "send", 2), (2, 3, "send", 2),
    ]  # fmt: skip
    assert [row["transfer_ns"] for row in rows] == [3 * MS, MS, MS]


def test_a_send_that_is_waited_for_late_took_no_longer_than_its_receive():
    ranks = [0, 1]
    sent = ("send", "default_pg", ranks, 1_000, 10 * MS, 40 * MS, ("peer", 1))
    received = ("recv", "default_pg", ranks, 1_000, 5 * MS, 12 * MS, ("peer", 0))
    same_clock = {"boot_id": "a", "start_monotonic_ns": 0}
    (link,) = job_of([[sent], [received]], world=2, **same_clock).links().to_pylist()
    assert 2 * MS <= link["transfer_ns"] <= 2 * MS + 10_000
    # Without clocks to compare, the shorter of both.
    (link,) = job_of([[sent], [received]], world=2).links().to_pylist()
    assert link["transfer_ns"] == 7 * MS


def test_calls_on_the_host_that_overlap_are_exposed_once():
    def rank(number):
        builder = TraceBuilder().know("distributedInfo", {"rank": number, "world_size": 2})
        builder.thread("main")
        workers = [builder.thread("gloo") for _ in range(2)]
        builder.step(0, 0, 100 * MS)
        shapes = builder.shapes([[4]], ["float"])
        for place, worker in enumerate(workers):
            begin = (10 + 10 * place) * MS
            builder.span("c10d::allreduce_", begin, MS, shapes=shapes)
            builder.annotation("gloo:all_reduce", begin + MS, 30 * MS, thread=worker, shapes=shapes)
        return builder.build()

    job = Job(pa.concat_tables([summary_of(rank(number)) for number in range(2)]))
    (row,) = job.exposed_communication().to_pylist()
    assert (row["calls"], row["total_ns"], row["exposed_ns"]) == (2, 60 * MS, 40 * MS)
    assert job.ranks()["exposed_ns"].to_pylist() == [40 * MS] * 2


def test_ranks_have_their_coordinates():
    def calls(rank):
        stage, place = divmod(rank, 2)
        return [
            ("all_reduce", "mesh_tp", [2 * stage, 2 * stage + 1], 8, 10 * MS, 11 * MS),
            (
                "all_gather",
                "PIPELINE_MODEL_PARALLEL_GROUP",
                [place, place + 2],
                8,
                (20 + stage) * MS,
                23 * MS,
            ),
        ]

    job = job_of([calls(rank) for rank in range(4)], world=4)
    assert job.ranks()["coordinates"].to_pylist() == ["PP=0 TP=0", "PP=0 TP=1", "PP=1 TP=0", "PP=1 TP=1"]
    rows = job.coordinates().to_pylist()
    assert [(row["dimension"], row["coordinate"], row["ranks"], row["late_ns"]) for row in rows] == [
        ("PP", 0, 2, 0), ("PP", 1, 2, MS), ("TP", 0, 2, MS // 2), ("TP", 1, 2, MS // 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("description", "ranks", "dimension"),
    [
        ("mesh_dp_shard", (0, 1), "DP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", (0, 1), "DP+CP"),
        ("tutors", (0, 1), "tutors"),
        ("default_pg", (0, 1, 2, 3), ""),
        ("", (0, 2), "2 ranks, 2 apart"),
        ("", (0, 1, 3), ""),
    ],
)
def test_a_dimension_is_named_by_its_group(description, ranks, dimension):
    assert dimension_of(Group("0", description, ranks, len(ranks)), 4) == dimension


def test_communication_of_eight_real_ranks(tmp_path):
    paths = ranks_of_a_job()
    job = kinetoscope.summarize(*paths, output=tmp_path)
    traces = [kinetoscope.open(path).table("collectives").to_pylist() for path in paths]
    rows = {row["name"]: row for row in job.exposed_communication().to_pylist()}
    assert rows.keys() == {"all_to_all", "all_reduce"}
    for name, row in rows.items():
        own = [[one for one in calls if one["name"] == name] for calls in traces]
        assert row["calls"] == len(own[0])
        assert row["exposed_ns"] == sum(one["exposed_ns"] for calls in own for one in calls) / 8
        least = sum(min(calls[place]["transfer_ns"] for calls in own) for place in range(len(own[0])))
        assert row["transfer_ns"] == least
        assert row["total_ns"] == sum(one["transfer_ns"] for calls in own for one in calls) / 8
    whole, *_ = job.without_lateness().to_pylist()
    assert whole["replayed_ns"] == pytest.approx(whole["step_ns"], rel=0.01)
    assert job.links().num_rows == 0
