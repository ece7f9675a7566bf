"""Requests that count as steps: their account, what is found of them, and how two servers are compared."""

import pytest

import kinetoscope
from kinetoscope.analyses.findings import examine, finding_blocks
from kinetoscope.analyses.overview import overview
from kinetoscope.analyses.waterfall import floor_sentence, parts_of_step
from kinetoscope.display.lines import plain_lines
from kinetoscope.display.sentence import plain
from tests.support.request_marks import begin_mark, end_mark, run_mark, submit_mark
from tests.support.server_trace import Server

MS = 1_000_000


def server(*, queue=0, slow=0, on_loop=2, count=40):
    """Requests of 10 ms each, of which `on_loop` ms are on the event loop, and the rest on a thread of a pool, with what else they wait for.

    Args:
        queue: How many ms each waits for the thread.
        slow: How many ms every tenth has more of operators, whose number of tokens is larger.
        on_loop: How many ms an operator runs on the event loop.
        count: How many requests there are.
    """
    made, end = Server(), 0
    stack = {name: made.builder.stack(("serve.py", line, name)) for name, line in (("tokenize", 7), ("predict", 17))}  # fmt: skip
    for number in range(count):
        more = slow * MS if number % 10 == 5 else 0
        begin = end + MS
        tokens = 512 if more else 8
        made.mark(begin_mark(0, "generate", f'{{"tokens": {tokens}}}'), begin, on_loop * MS)
        made.operator(begin, on_loop * MS, stack=stack["tokenize"]).mark(submit_mark(0), begin + on_loop * MS)
        begin += (on_loop + queue) * MS
        end = begin + (10 - on_loop) * MS + more
        made.mark(run_mark(0), begin, end - begin, thread=1)
        made.operator(begin, end - begin, thread=1, stack=stack["predict"])
        made.mark(end_mark(0, "finished", ""), end)
    return made.builder.build()


def found(trace):
    return {one.code: one for one in examine(trace).findings}


def test_a_request_is_what_takes_time_and_its_parts_add_up_to_it():
    trace = server(queue=5)
    account = trace.account()
    (kind,) = account.kinds
    assert (kind.request, kind.steps, kind.duration_ns) == ("generate", 40, 40 * 15 * MS)
    parts = parts_of_step(account, kind)
    assert sum(one.time_ns for one in parts) == pytest.approx(15 * MS)
    assert ("waiting for a thread of a pool", 5 * MS) in [(one.what, one.time_ns) for one in parts]
    assert floor_sentence(account, kind).startswith("a request takes 15 ms")
    rows = trace.table("account", by="step").to_pylist()
    each = [0] * 40
    for row in rows:
        assert row["request_name"] == "generate"
        each[row["request"]] += row["time_ns"]
    assert each == [15 * MS] * 40
    assert account.what_if("waiting for a thread of a pool").then_ns == pytest.approx(10 * MS)


def test_requests_of_several_names_are_said_by_name():
    made = Server()
    for number, name in enumerate(("short", "long", "long")):
        made.mark(begin_mark(number, name, ""), number * 100, 50).operator(number * 100, 50)
        made.mark(end_mark(number, "finished", ""), number * 100 + 50)
    account = made.builder.build().account()
    assert [(one.request, one.steps) for one in account.kinds] == [("long", 2), ("short", 1)]
    assert floor_sentence(account, account.kinds[1]).startswith("a request named short takes 50 ns")


def test_steps_count_where_the_trace_has_some():
    made = Server()
    made.mark(begin_mark(0, "generate", ""), 10, 50).mark(end_mark(0, "finished", ""), 60)
    made.builder.step(0, 0, 100)
    (kind,) = made.builder.build().account().kinds
    assert (kind.request, kind.duration_ns) == ("", 100)


def test_a_wait_for_the_pool_is_found_with_what_runs_there():
    one = found(server(queue=5))["executor-wait"]
    assert plain(one.finding) == (
        "Requests wait for a thread of a pool, of which 1 thread worked for them: 33.3 % of request time, 5 ms a request; "
        "what runs there most is predict (serve.py:17)"
    )
    assert one.gain_ns == 40 * 5 * MS
    assert "executor-wait" not in found(server(queue=1))


def test_a_wait_for_the_event_loop_is_found_with_what_runs_there():
    made = Server()
    stack = made.builder.stack(("serve.py", 7, "tokenize"))
    for pair in range(5):
        at = pair * 100 * MS
        # Both begin; the second one runs while the first one could.
        made.mark(begin_mark(0, "generate", ""), at, MS).mark(begin_mark(1, "generate", ""), at + MS, 9 * MS)
        made.operator(at + MS, 9 * MS, stack=stack).mark(end_mark(1, "finished", ""), at + 10 * MS)
        made.mark(run_mark(0), at + 10 * MS, MS).mark(end_mark(0, "finished", ""), at + 11 * MS)
    one = found(made.builder.build())["event-loop-busy"]
    assert "what runs there most is tokenize (serve.py:7)" in plain(one.finding)
    assert str(one.place) == "serve.py:7"
    assert len(one.spans) == 5


def test_what_the_slowest_tenth_has_more_of_is_found_with_the_argument_that_is_unusual():
    one = found(server(slow=30))["slow-requests"]
    assert plain(one.finding) == (
        "The slowest tenth of the requests named generate take 40 ms, and typical ones 10 ms: 30 ms more is in operators, "
        "most of it at serve.py:17; median tokens: 512 instead of 8"
    )
    assert one.gain_ns == 4 * 30 * MS
    assert one.spans
    assert "slow-requests" not in found(server(slow=4))
    assert "slow-requests" not in found(server(slow=30, count=19))


def test_what_is_printed_speaks_of_requests():
    report = examine(server(queue=5))
    text = "\n".join(line for line in plain_lines(finding_blocks(report), 100))
    assert "A request takes 15 ms" in text
    assert "step" not in text
    assert overview(server(queue=5)).requests == [
        "generate: 40 requests · p50 15 ms · p99 15 ms · operators 66.7 %, waiting for a thread of a pool 33.3 %"
    ]


def test_two_servers_are_compared_by_their_requests():
    found = kinetoscope.compare(server(), server(queue=5))
    assert found.base.steps == 39
    assert (found.whole.base_ns, found.whole.new_ns) == pytest.approx((10 * MS, 15 * MS))
    text = found.to_text()
    assert "39 requests" in text
    assert "a request" in text
    parts = {row.name: row.change_ns for row in found.differences if row.kind == "part"}
    assert parts["waiting for a thread of a pool"] == pytest.approx(5 * MS)
