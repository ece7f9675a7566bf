"""The page of stacks: what it shows at first, and its colors."""

from kinetoscope.viewer.server.report import report
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


def test_the_flame_chart_is_chosen_moved_and_searched(visit, served):
    builder = TraceBuilder().know("with_stack", 1)
    builder.thread("main thread")
    main = ("/code/train.py", 3, "main")
    for start in range(0, 10_000, 1000):
        builder.span("aten::mm", start, 600, stack=builder.stack(main, ("/code/model.py", 7, "forward")))
        builder.span("aten::add", start + 700, 200, stack=builder.stack(main))
    other = builder.thread("other thread")
    builder.span("aten::relu", 100, 400, thread=other)
    page = visit.open(served.address(builder.build(), "stacks"))
    page.get_by_role("button", name="Over time").click()
    chart = page.get_by_role("application", name="Call stacks of main thread over time")
    chart.wait_for()
    chart.focus()
    page.keyboard.press("ArrowDown")
    page.locator(".stacks-chosen", has_text="main").wait_for()
    page.keyboard.press("ArrowDown")
    page.locator(".stacks-chosen", has_text="forward").wait_for()
    assert page.locator(".chart-below .mono").first.inner_text() == "/code/model.py:7"
    page.keyboard.press("f")
    page.wait_for_function("() => location.hash.includes('start=')")
    page.get_by_role("searchbox", name="Search calls").fill("aten::add")
    page.locator(".stacks-search", has_text="in view").wait_for()
    page.keyboard.press("Enter")
    page.locator(".stacks-chosen", has_text="aten::add").wait_for()
    page.get_by_role("link", name="Show on the timeline").click()
    page.locator(".tl-frame").wait_for()
    assert "span=" in page.url
    page.go_back()
    page.get_by_role("combobox", name="Thread").select_option(label="other thread · 1 span")
    page.get_by_role("application", name="Call stacks of other thread over time").wait_for()
    # Nothing of the other thread is left in the address.
    assert "at=" not in page.url


def test_a_report_has_the_flame_chart_of_its_steps(visit, tmp_path):
    builder = TraceBuilder().know("with_stack", 1)
    stack = builder.stack(("/code/train.py", 3, "main"))
    for number in range(4):
        builder.step(number, 1000 * number, 1000)
        builder.span("aten::mm", 1000 * number + 100, 600, stack=stack)
    path = report(builder.build(), tmp_path / "stacks.html", pages=["stacks"])
    page = visit.open(f"{path.as_uri()}#/stacks?order=time")
    page.get_by_role("application", name="over time").wait_for()
    page.get_by_text("A report has the median step only.").wait_for()
