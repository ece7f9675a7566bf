"""A small trace that has something of everything."""

from tests.support.trace_builder import TraceBuilder


def rich_trace():
    builder = TraceBuilder()
    main, other = builder.thread("main"), builder.thread("wörker \udc80")
    net = builder.module("Net")
    fc = builder.module("Linear", name="fc", parent=net)
    stack = builder.stack(("a.py", 1, "main"), ("b.py", 2, "go"))
    builder.step(0, 0, 1000, thread=main)
    builder.span("aten::linear", 10, 50, module=fc, stack=stack, sequence=1, shapes=builder.shapes([[2, 3]]))
    builder.backward("LinearBackward0", 200, 50, sequence=1)
    builder.span("aten::add", 5, 500, thread=other, overload="Tensor", is_async=True)
    builder.span("torch::autograd::AccumulateGrad", 300, 5, scope=1, parameter=builder.parameter(fc))
    builder.allocate(20, 0xFFFF_FFFF_FFFF_FF00, 1 << 40)
    builder.free(30, 0xFFFF_FFFF_FFFF_FF00)
    return builder.lose("recycled_spans", 5).know("command_line", ["python", "x.py"]).build()
