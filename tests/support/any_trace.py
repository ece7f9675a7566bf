"""Any trace at all: a hypothesis strategy with rows in every table, for what must hold of all of them."""

from hypothesis import strategies as st

from kinetoscope.model.schema import STORED, SampleState, SpanKind
from kinetoscope.trace import Trace
from tests.support.hostile import hostile_text
from tests.support.trace_builder import TraceBuilder

END_NS = 120
_NAMES = (
    "aten::add",
    "aten::add",
    "aten::mm",
    "ProfilerStep#3",
    "ProfilerStep#4",
    "Optimizer.step#SGD.step",
    "autograd::engine::evaluate_function: X",
    "gloo:all_reduce",
)


@st.composite
def any_traces(draw, *, devices=True, max_spans=12):
    """Spans of all kinds that nest or not, on threads and streams, with memory, steps, launches, counters,
    samples and losses."""
    builder = TraceBuilder()
    for name in ("main", draw(hostile_text)):
        builder.thread(name)
    net = builder.module("Net")
    modules = [-1, net, builder.module("Linear", name="fc", parent=net), builder.module("Unused")]
    stacks = [
        -1,
        builder.stack(("a.py", 1, "f")),
        builder.stack(("a.py", 1, "f"), ("b.py", 2, draw(hostile_text))),
        builder.stack(("never.py", 1, "called")),
    ]
    builder.string("a string that nothing names")
    shapes = [-1, builder.shapes([[2, 3]]), builder.shapes([[]], ["float"])]
    parameters = [-1, builder.parameter(net)]
    streams = [builder.stream(7), builder.stream(20, device=1)] if devices else []
    times, lengths = st.integers(0, END_NS // 2), st.sampled_from([0, 1, 3, 10, 40, 60])
    for number in range(draw(st.integers(0, max_spans))):
        builder.span(
            draw(st.one_of(st.sampled_from(_NAMES), hostile_text)),
            draw(times),
            draw(lengths),
            thread=draw(st.integers(0, 1)),
            scope=draw(st.sampled_from([0, 0, 1, 7, 100, 101])),
            sequence=draw(st.integers(-1, 2)),
            forward_thread=draw(st.integers(-1, 1)),
            module=draw(st.sampled_from(modules)),
            stack=draw(st.sampled_from(stacks)),
            shapes=draw(st.sampled_from(shapes)),
            parameter=draw(st.sampled_from(parameters)),
            is_async=draw(st.booleans()),
            correlation=number if streams and draw(st.booleans()) else -1,
            arguments=draw(st.sampled_from([None, {"a": 1}, {"b": "x"}])),
            facts=draw(st.sampled_from([None, None, {"Group size": 2}])),
        )
    for _ in range(draw(st.integers(0, max_spans // 2)) if streams else 0):
        kind = draw(st.sampled_from([SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.USER_ANNOTATION]))
        builder.on_device(
            f"device {kind.name}",
            draw(times) + 20,
            draw(lengths),
            kind,
            stream=draw(st.sampled_from(streams)),
            correlation=draw(st.integers(-1, max_spans)),
            launch={"grid_x": 4} if kind == SpanKind.KERNEL else None,
            copied={"bytes": 4096} if kind == SpanKind.MEMCPY else None,
        )
    sized = st.sampled_from([0, 0, 8, 100])
    for time_ns in sorted(draw(st.lists(st.integers(0, END_NS), max_size=10))):
        device = draw(st.sampled_from([(0, -1), (0, -1), (1, 0), (1, 1)]))
        builder.allocate(
            time_ns, draw(st.integers(1, 3)), draw(sized), thread=draw(st.integers(0, 1)), device=device,
            stack=draw(st.sampled_from(stacks)),
        )  # fmt: skip
    for time_ns in draw(st.lists(st.integers(0, END_NS), max_size=3)):
        builder.counter("power", time_ns, draw(st.floats(allow_nan=False)))
    for time_ns in draw(st.lists(st.integers(0, END_NS), max_size=3)):
        builder.sample(
            time_ns, draw(st.sampled_from(stacks[1:])), thread=draw(st.integers(0, 1)), module=draw(st.sampled_from(modules)),
            state=draw(st.sampled_from(SampleState)), period_ns=draw(st.integers(0, 20)),
        )  # fmt: skip
    if builder.spans and draw(st.booleans()):
        builder.give(builder.strings[builder.spans[0].name], 1, 100)
    if draw(st.booleans()):
        builder.hold("parameter", 2, 8, module=net, name="weight", time_ns=draw(st.integers(-5, END_NS)))
    if draw(st.booleans()):
        builder.lose("dropped_spans", 3)
    return builder.build()


def given_columns(trace):
    """All that a trace was given, as `Trace.from_columns` takes it."""
    tables = {name: trace.columns(name) for name in STORED}
    return {name: {column: table[column] for column in table.given} for name, table in tables.items()}


def changed(trace, **tables):
    """The same trace with some given columns replaced, as `spans={"rank": ...}`."""
    columns = given_columns(trace)
    for name, added in tables.items():
        columns[name] |= added
    return Trace.from_columns(columns, strings=trace.strings, info=trace.info)
