"""The timeline under the mouse and the keyboard: what is chosen, found and measured, and that its address says so."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder

US = 1_000
ROW, PADDING = 18, 3


@pytest.fixture
def device_trace():
    """One operator after the other, of which two launch a kernel: from 0 to 980 µs."""
    builder = TraceBuilder()
    stream = builder.stream(7)
    for number in range(10):
        start = number * 100 * US
        builder.span("aten::mm" if number % 5 == 0 else "aten::relu", start, 80 * US)
        builder.span("aten::resize_", start + 10 * US, 5 * US)
        if number % 5 == 0:
            builder.runtime("cudaLaunchKernel", start + 20 * US, 10 * US, correlation=number + 1)
            builder.kernel("gemm", start + 40 * US, 50 * US, stream=stream, correlation=number + 1)
    return builder.build()


def place(page, time_ns, row, *, end_ns=980 * US):
    """Where a time of a row of the first track is on the screen, while the whole trace is in view."""
    box = page.locator(".tl-area").bounding_box()
    return box["x"] + time_ns / end_ns * box["width"], box["y"] + PADDING + (row + 0.5) * ROW


def query(page):
    """What of the timeline the address holds."""
    return {key: values[0] for key, values in parse_qs(urlsplit(urlsplit(page.url).fragment).query).items()}


def open_timeline(visit, served, trace, **options):
    """Opens the page and waits until all that is in view was drawn and counted."""
    page = visit.open(served.address(trace, "timeline", **options))
    page.locator(".tl-range .row").first.wait_for()
    return page


def chosen(page, name):
    """Waits until show a span's details of this name is shown."""
    page.locator(".tl-chosen h2", has_text=name).wait_for()


def test_a_click_tells_all_and_links_lead_on(visit, served, device_trace):
    page = open_timeline(visit, served, device_trace)
    page.mouse.click(*place(page, 540 * US, 0))
    chosen(page, "aten::mm")
    assert page.locator(".tl-facts > div", has_text="Duration").inner_text().split("\n") == [
        "Duration",
        "80 µs",
    ]
    page.locator(".tl-links button", has_text="gemm").click()
    chosen(page, "gemm")
    gemm = int(query(page)["span"])
    assert answer(device_trace, f"span/{gemm}", {})["start_ns"] == 540 * US
    page.locator(".tl-links button", has_text="cudaLaunchKernel").click()
    chosen(page, "cudaLaunchKernel")
    page.go_back()
    chosen(page, "gemm")
    page.keyboard.press("Escape")
    page.locator("section.tl-panel h2", has_text="In view").wait_for()
    assert "span" not in query(page)


def test_arrow_keys_go_from_span_to_span(visit, served, device_trace):
    page = open_timeline(visit, served, device_trace)
    page.mouse.click(*place(page, 40 * US, 0))
    chosen(page, "aten::mm")
    for key, name in (
        ("ArrowDown", "aten::resize_"),
        ("ArrowRight", "cudaLaunchKernel"),
        ("ArrowLeft", "aten::resize_"),
        ("ArrowUp", "aten::mm"),
        ("ArrowRight", "aten::relu"),
    ):
        page.keyboard.press(key)
        chosen(page, name)


def test_a_range_is_measured(visit, served, device_trace):
    page = open_timeline(visit, served, device_trace)
    page.keyboard.down("Shift")
    page.mouse.move(*place(page, 250 * US, 0))
    page.mouse.down()
    page.mouse.move(*place(page, 650 * US, 0), steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.locator("section.tl-panel h2", has_text="selected").wait_for()
    page.locator(".tl-range .row", has_text="gemm").wait_for()
    start, end = query(page)["range"].split("-")
    assert abs(int(start) - 250 * US) < 3 * US
    assert abs(int(end) - 650 * US) < 3 * US
    table = answer(device_trace, "range", {"start": start, "end": end})
    # Until the answer has come, the one about all that is in view stands there.
    spans = f"{sum(table['count'].to_pylist())} spans"
    page.locator(".tl-range .tl-chosen-head .muted", has_text=spans).wait_for()
    assert page.locator(".tl-range .row").count() == table.num_rows
    shares = page.locator(".tl-range .row .cell:last-child").all_inner_texts()
    assert sum(float(share.removesuffix(" %")) for share in shares) == pytest.approx(100, abs=0.5)
    page.keyboard.press("Escape")
    page.locator("section.tl-panel h2", has_text="In view").wait_for()


def test_what_is_searched_is_found_one_by_one(visit, served, device_trace):
    page = open_timeline(visit, served, device_trace)
    page.keyboard.press("/")
    page.keyboard.type("gemm")
    found = page.get_by_role("status")
    found.get_by_text("2 found").wait_for()
    page.keyboard.press("Enter")
    found.get_by_text("1 of 2").wait_for()
    page.keyboard.press("Enter")
    found.get_by_text("2 of 2").wait_for()
    chosen(page, "gemm")
    assert query(page)["find"] == "gemm"
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('find=')")


def test_zooming_is_kept_in_the_address(visit, served, device_trace):
    page = open_timeline(visit, served, device_trace)
    x, y = place(page, 500 * US, 0)
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -700)
    page.keyboard.up("Control")
    page.wait_for_function("() => location.hash.includes('start=')")
    shown = query(page)
    assert float(shown["start"]) < 500 * US < float(shown["end"])
    assert float(shown["end"]) - float(shown["start"]) < 300 * US
    again = open_timeline(visit, served, device_trace, start=shown["start"], end=shown["end"])
    width = again.locator(".tl-corner strong").first.inner_text()
    assert re.fullmatch(r"\d+ µs", width)
    again.keyboard.press("0")
    again.wait_for_function("() => !location.hash.includes('start=')")
    again.locator(".tl-corner strong", has_text="980 µs").wait_for()
    again.keyboard.press("?")
    again.get_by_role("dialog").get_by_text("zoom in, out").wait_for()


def test_names_of_any_kind_are_texts(visit, served):
    script = "<img src=x onerror=\"document.title='taken'\">\u202egnirts"
    builder = TraceBuilder()
    builder.span(script, 0, 60 * US)
    builder.span("x" * 1_000_000, 60 * US, 40 * US)
    trace = builder.build()
    page = open_timeline(visit, served, trace)
    page.mouse.click(*place(page, 30 * US, 0, end_ns=100 * US))
    chosen(page, "onerror")
    page.mouse.click(*place(page, 80 * US, 0, end_ns=100 * US))
    chosen(page, "xxxx")
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280


def test_a_trace_with_nothing_in_it_says_so(visit, served):
    page = visit.open(served.address(TraceBuilder().build(), "timeline"))
    assert "has no spans" in page.locator(".nothing").inner_text()
