"""`acc_events`: every cycle is kept, numbered, added up, and exported alone or together."""

import gc
import json
from collections import Counter

import pytest
import torch
import torch.profiler

import kinetoscope
from kinetoscope import ArgumentError, ProfilerActivity, StateError, profile, schedule
from kinetoscope.model.dictionary import table_definition
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

CPU = [ProfilerActivity.CPU]
THREE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 3}


def program(session, steps=12):
    """Each step of its own size, so that the steps of a cycle are known again."""
    with session:
        for number in range(steps):
            torch.ones(number + 1, 2).add(1)
            session.step()
    return session


def accumulated(engine, **more):  # noqa: F811
    return program(
        profile(activities=CPU, engine=engine, schedule=schedule(**THREE), acc_events=True, **more)
    )


def marks(names):
    return sorted({name for name in names if name.startswith("ProfilerStep#")})


def steps_in(session):
    return sum(event.name == "ProfilerStep*" for event in session.events())


def test_the_sums_are_those_of_all_cycles_as_in_torch(engine):  # noqa: F811
    theirs = program(
        torch.profiler.profile(activities=CPU, schedule=torch.profiler.schedule(**THREE), acc_events=True)
    )
    ours = accumulated(engine)
    for made in (theirs, ours):
        assert steps_in(made) == 6
    assert {row.key: row.count for row in ours.key_averages()} == {
        row.key: row.count for row in theirs.key_averages()
    }
    assert ours.events().self_cpu_time_total > 0


def test_without_acc_events_only_the_last_cycle_is_stored(engine):  # noqa: F811
    session = profile(
        activities=CPU, engine=engine, schedule=schedule(**THREE), on_trace_ready=lambda s: s.trace
    )
    program(session)
    assert len(session.cycles) == 1
    assert session.cycles.numbers == (2,)
    assert session.cycles[0] is session.trace
    assert steps_in(session) == 2
    with pytest.raises(
        ArgumentError, match=r"cycle=0 is not available: .*: 2 \(acc_events=True keeps them all\)"
    ):
        session.save("never.ktrace", cycle=0)


def test_a_handler_sees_its_own_cycle_and_the_sum_so_far(engine):  # noqa: F811
    seen = []
    accumulated(
        engine,
        on_trace_ready=lambda session: seen.append(
            (session.trace.info["cycle"]["number"], len(session.cycles), steps_in(session))
        ),
    )
    assert seen == [(0, 1, 2), (1, 2, 4), (2, 3, 6)]


def test_cycles_are_a_sequence_of_traces(engine):  # noqa: F811
    session = accumulated(engine)
    cycles = session.cycles
    assert (len(cycles), cycles.numbers, repr(cycles)) == (3, (0, 1, 2), "<Cycles 0, 1, 2>")
    assert [trace.info["cycle"]["number"] for trace in cycles] == [0, 1, 2]
    assert cycles[-1] is session.trace is list(cycles)[2]
    assert cycles[1:] == [cycles[1], cycles[2]]
    assert [trace.table("cycles").column("first_step").to_pylist() for trace in cycles] == [[2], [6], [10]]
    with pytest.raises(IndexError, match=r"cycles\[3\]: there are 3"):
        cycles[3]


def test_exports_hold_one_cycle_or_all_of_them(engine, tmp_path):  # noqa: F811
    session = accumulated(engine)

    def exported(**which):
        session.export_chrome_trace(tmp_path / "trace.json", **which)
        file = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
        return file, [event for event in file["traceEvents"] if event.get("ph") == "X"]

    for number in range(3):
        _, slices = exported(cycle=number)
        assert marks(event["name"] for event in slices) == marks(
            f"ProfilerStep#{4 * number + n}" for n in (2, 3)
        )
    assert marks(event["name"] for event in exported()[1]) == ["ProfilerStep#10", "ProfilerStep#11"]
    file, slices = exported(cycle="all")
    assert [cycle["number"] for cycle in file["cycles"]] == [0, 1, 2]
    assert len({cycle["trace_id"] for cycle in file["cycles"]}) == 3
    in_order = sorted(
        (event["ts"], event["name"]) for event in slices if event["name"].startswith("ProfilerStep#")
    )
    assert [name for _, name in in_order] == [f"ProfilerStep#{n}" for n in (2, 3, 6, 7, 10, 11)]

    session.save(tmp_path / "all.ktrace", cycle="all")
    with kinetoscope.open(tmp_path / "all.ktrace") as again:
        rows = again.table("cycles").to_pylist()
        assert [(row["number"], row["first_step"], row["steps"]) for row in rows] == [
            (0, 2, 2),
            (1, 6, 2),
            (2, 10, 2),
        ]
        spans = again.to_pandas("spans")
        assert Counter(spans["cycle"]) == Counter({row["number"]: row["spans"] for row in rows})
        sql = again.sql(
            "select cycle, count(*) from spans where name = 'aten::add' group by cycle order by cycle"
        )
        assert [tuple(row.values()) for row in sql.to_pylist()] == [(0, 2), (1, 2), (2, 2)]


def test_cycles_of_a_session_that_is_started_by_hand(engine):  # noqa: F811
    session = profile(activities=CPU, engine=engine, acc_events=True)
    for number in range(3):
        with session:
            torch.ones(number + 1).add(1)
    assert session.cycles.numbers == (0, 1, 2)
    assert sum(event.name == "aten::add" for event in session.events()) == 3


def test_with_everything_recorded_every_row_of_all_together_is_one_of_a_cycle(native):  # noqa: F811
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())
    session = profile(
        activities=CPU, engine=native, acc_events=True, record_shapes=True, profile_memory=True, with_stack=True,
        with_flops=True, with_modules=True, python_calls=True, module_spans=True, schedule=schedule(**THREE),
    )  # fmt: skip
    with session:
        for _ in range(12):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()

    references = [
        column.name for column in table_definition("spans").columns if column.unit == "row of spans"
    ]

    def rows(trace, offset_ns):
        spans, threads = trace.table("spans").to_pylist(), trace.table("threads").column("os_tid").to_pylist()
        for row in spans:
            # Each cycle numbers its threads by itself.
            row["thread"] = threads[row["thread"]]
            row["refers to"] = [
                None if row[name] is None else spans[row[name]]["name"] for name in references if name != "id"
            ]
        return [
            {key: value for key, value in row.items() if key not in ("cycle", *references)}
            | {"start_ns": row["start_ns"] + offset_ns}
            for row in spans
        ]

    together = session.cycles.together()
    begins = together.column("cycles", "start_ns").tolist()
    expected = [
        row for trace, begin_ns in zip(session.cycles, begins, strict=True) for row in rows(trace, begin_ns)
    ]
    found = rows(together, 0)
    assert len(found) == len(expected) > 1000
    assert sorted(found, key=str) == sorted(expected, key=str)
    for table in ("operands", "storages", "allocations"):
        assert len(together.columns(table)) == sum(len(trace.columns(table)) for trace in session.cycles) > 0


@pytest.mark.parametrize("choice", [3, -1, True, "last", 1.5, [0]])
def test_a_cycle_that_is_none_is_refused_with_those_there_are(choice, tmp_path):
    session = profile(engine=NotingEngine(), acc_events=True)
    for _ in range(2):
        session.start()
        session.stop()
    for call in (session.export_chrome_trace, session.save):
        with pytest.raises(ArgumentError, match=r"choose 'all', None for the last one, or .*: 0, 1\."):
            call(tmp_path / "never.json", cycle=choice)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="there is no trace yet"):
        profile(engine=NotingEngine(), acc_events=True).save(tmp_path / "never.ktrace", cycle="all")


def test_nothing_is_built_before_it_is_asked_for_and_nothing_dropped():
    recorder = NotingEngine()
    session = profile(engine=recorder, schedule=schedule(**THREE), acc_events=True)
    program(session)
    assert recorder.log == ["prepare", "start", "stop"] * 3
    assert len(session.cycles) == 3
    assert session.cycles[1] is recorder.recordings[1].trace()
    assert recorder.log.count("build") == 1


def test_a_warm_up_without_active_steps_is_not_a_cycle():
    recorder = NotingEngine()
    session = profile(engine=recorder, schedule=schedule(wait=0, warmup=2, active=1), acc_events=True)
    with pytest.warns(UserWarning, match="nothing was recorded"), session:
        session.step()
    assert session.cycles.numbers == ()
    with pytest.raises(StateError, match="no cycles to merge"):
        session.cycles.together()
    with session:
        for _ in range(3):
            session.step()
    assert session.cycles.numbers == (0,)


def test_metadata_that_comes_late_joins_the_last_cycle_and_all_together(native):  # noqa: F811
    session = accumulated(native)
    together = session.cycles.together()
    session.add_metadata("note", "late")
    assert [trace.info.get("note") for trace in session.cycles] == [None, None, "late"]
    assert session.cycles.together().info["note"] == "late"
    assert session.cycles.together() is session.cycles.together() is not together


def test_only_what_was_recorded_grows(native):  # noqa: F811
    """After a hundred cycles the process holds their traces, and of everything else as much as after one."""

    def of_the_room():
        gc.collect()
        return Counter(
            type(thing).__name__
            for thing in gc.get_objects()
            if str(type(thing).__module__).startswith("kinetoscope.collect")
        )

    session = profile(activities=CPU, engine=native, acc_events=True)
    counted = []
    for cycles in (2, 100):
        while len(session.cycles) < cycles:
            session.start()
            torch.ones(2).add(1)
            session.stop()
        counted.append(of_the_room())
    grown = {name: count - counted[0][name] for name, count in counted[1].items() if count > counted[0][name]}
    of_cycle = {"Cycle", "NativeRecording", "SessionStats"}
    of_cycle |= {"SourcedRecording"}
    assert grown == dict.fromkeys(of_cycle, 98)
