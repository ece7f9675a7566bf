"""The page of stacks: what it shows at first, and its colors."""

from tests.support.trace_builder import TraceBuilder


def test_frames_of_torch_are_hidden_until_asked_for_and_files_have_colors(visit, served):
    builder = TraceBuilder()
    main, torch = (
        ("/code/train.py", 3, "main"),
        ("/site-packages/torch/nn/modules/module.py", 9, "_call_impl"),
    )
    builder.span("aten::mm", 0, 100, stack=builder.stack(main, torch, ("/code/model.py", 7, "forward")))
    builder.span("aten::add", 110, 50, stack=builder.stack(main, torch))
    page = visit.open(served.address(builder.build(), "stacks"))
    torch_frames = page.get_by_role("checkbox", name="Hide torch frames")
    assert torch_frames.is_checked()
    assert page.locator(".stacks-files").inner_text().split() == ["model.py", "train.py"]
    canvas = page.locator(".icicle-scroll")
    rows = "() => document.querySelector('.icicle-scroll > div').clientHeight"
    two = page.evaluate(rows)
    # As high as its rows: nothing is blank, nothing scrolls.
    assert canvas.evaluate("(one) => one.scrollHeight <= one.clientHeight")
    assert canvas.evaluate("(one) => one.clientHeight") < 2 * two
    torch_frames.uncheck()
    page.wait_for_function("() => location.hash.includes('library=show')")
    page.wait_for_function(f"(two) => ({rows})() === 1.5 * two", arg=two)
