"""The timeline under the mouse and the keyboard: what is chosen, found and measured, and that its address says so."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

import kinetoscope
from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder

US = 1_000
PADDING = 3


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


def place(page, time_ns, row, *, end_ns=980 * US, rows=2):
    """Where a time of a row of the first track is on the screen, while the whole trace is in view."""
    box, label = (page.locator(one).first.bounding_box() for one in (".tl-area", ".tl-label"))
    height = (label["height"] - 2 * PADDING) / rows
    return box["x"] + time_ns / end_ns * box["width"], box["y"] + PADDING + (row + 0.5) * height


def query(page):
    """What of the timeline the address holds."""
    return {key: values[0] for key, values in parse_qs(urlsplit(urlsplit(page.url).fragment).query).items()}


def open_timeline(visit, served, trace, **options):
    """Opens the page and waits until all that is in view was drawn and counted."""
    page = visit.open(served.address(trace, "timeline", **options))
    page.locator(".tl-range .row").first.wait_for()
    # The spans that are drawn, and can be clicked, come with another response.
    page.wait_for_load_state("networkidle")
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


@pytest.fixture
def stepped_trace():
    """Eight steps of 1 ms, of which the fourth takes two; each with operators as deep as a track that is closed at first."""
    builder = TraceBuilder()
    start = 0
    for number in range(8):
        duration = 2000 * US if number == 3 else (1000 + number) * US
        builder.step(number, start, duration)
        for depth in range(40):
            builder.span(f"level{depth}", start + depth * US, duration - 100 * US - 2 * depth * US)
        start += duration
    return builder.build()


def test_it_opens_on_a_median_step_and_all_is_a_key_away(visit, served, stepped_trace):
    page = open_timeline(visit, served, stepped_trace)
    width = page.locator(".tl-corner strong").first
    assert width.inner_text() == "1.24 ms"
    assert "start" not in query(page)
    page.keyboard.press("0")
    page.wait_for_function("() => location.hash.includes('start=0')")
    again = open_timeline(visit, served, stepped_trace, **{key: query(page)[key] for key in ("start", "end")})
    assert again.locator(".tl-corner strong").first.inner_text().startswith("9.0")


def test_tracks_have_room_for_what_is_in_view_not_for_the_deepest_of_the_trace(visit, served):
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 100 * US, 100 * US)
        # The first step compiles: it nests deeper than all others.
        for depth in range(24 if step == 0 else 3):
            builder.span(f"aten::op{depth}", (step * 100 + depth) * US, (90 - 2 * depth) * US)
    page = open_timeline(visit, served, builder.build())

    def rows(count):
        # A row is 18 pixels high, or up to 30 where there is room.
        page.wait_for_function(
            """([from, to]) => {
                const { height } = document.querySelector(".tl-label.thread").getBoundingClientRect();
                return height >= from && height <= to;
            }""",
            arg=[count * 18, count * 30 + 2 * PADDING + 1],
        )

    rows(3)
    # No empty room below the tracks: the table takes it.
    area, last = page.locator(".tl-area").bounding_box(), page.locator(".tl-label").last.bounding_box()
    assert area["y"] + area["height"] - last["y"] - last["height"] < 20
    page.keyboard.press("0")
    rows(24)
    page.mouse.dblclick(*place(page, 550 * US, 0, end_ns=800 * US, rows=1))
    rows(3)


def test_enter_in_the_search_opens_the_track_that_it_lands_in(visit, served, stepped_trace):
    page = open_timeline(visit, served, stepped_trace)
    thread = page.locator(".tl-label.thread button[aria-expanded]")
    assert thread.get_attribute("aria-expanded") == "false"
    page.keyboard.press("/")
    page.keyboard.type("level39")
    page.get_by_role("status").get_by_text("8 found").wait_for()
    page.keyboard.press("Enter")
    chosen(page, "level39")
    page.locator(".tl-label.thread button[aria-expanded=true]").wait_for()


def test_a_click_on_boxes_that_are_drawn_as_one_does_not_zoom(visit, served):
    builder = TraceBuilder()
    for number in range(10_000):
        builder.span("aten::mm", number * US, US // 2)
    page = open_timeline(visit, served, builder.build())
    x, y = place(page, 5_000 * US, 0, end_ns=9_999.5 * US, rows=1)
    page.mouse.click(x, y)
    chosen(page, "aten::mm")
    assert page.locator(".tl-corner strong").first.inner_text() == "10.0 ms"
    page.mouse.dblclick(x, y)
    page.wait_for_function("() => location.hash.includes('start=')")


def test_tracks_are_pinned_hidden_and_their_labels_made_wider(visit, served, stepped_trace):
    page = open_timeline(visit, served, stepped_trace)
    labels = page.locator(".tl-label .tl-words > :first-child")
    assert labels.all_inner_texts() == ["Steps", "main"]
    for label in ("Pin main", "Hide Steps"):
        button = page.get_by_role("button", name=label)
        button.focus()
        button.press("Enter")
    page.get_by_role("button", name="Show 1 hidden").wait_for()
    assert labels.all_inner_texts() == ["main"]
    assert {"pins", "hidden"} <= set(query(page))
    page.get_by_role("button", name="Show 1 hidden").click()
    page.wait_for_function("() => document.querySelectorAll('.tl-label').length === 2")
    assert labels.all_inner_texts() == ["main", "Steps"]
    width = "() => document.querySelector('.tl-labels').clientWidth"
    before = page.evaluate(width)
    page.get_by_role("separator", name="Width of the labels").press("ArrowRight")
    page.wait_for_function(f"(before) => ({width})() > before", arg=before)
    assert "operators" in page.locator(".tl-legend").inner_text()


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


def test_all_counters_come_with_one_request(visit, served):
    builder = TraceBuilder().span("aten::mm", 0, 1000 * US)
    for time in range(0, 1000, 10):
        for number in range(4):
            builder.counter(f"load{number}", time * US, float(time + number))
    asked = []
    visit.page.on("request", lambda request: asked.append(urlsplit(request.url)))
    with visit.page.expect_response(lambda response: "/counter?" in response.url):
        open_timeline(visit, served, builder.build())
    (one,) = [parse_qs(one.query) for one in asked if one.path.endswith("/counter")]
    assert len(one["track"][0].split(",")) == 4


def rank(number):
    """One rank: a main thread, and a loader's."""
    builder = TraceBuilder()
    main, other = builder.thread("MainThread"), builder.thread("loader")
    for start in (0, 30):
        builder.span(f"forward {number}", start * US, 20 * US, thread=main)
    builder.span("fetch", 0, 20 * US, thread=other)
    builder.know("distributedInfo", {"rank": number, "world_size": 3})
    trace = builder.build()
    trace.info.update(process=100 + number, start_monotonic_ns=1_000, boot_id="x")
    return trace


def test_tracks_are_filtered_by_name_and_processes_collapse_to_one_row_each(visit, served):
    page = open_timeline(visit, served, kinetoscope.merge([rank(number) for number in range(3)]))
    page.get_by_placeholder("Filter tracks").fill("loader")
    page.wait_for_function("() => document.querySelectorAll('.tl-label').length === 3")
    assert {text.split("\n")[0] for text in page.locator(".tl-label").all_inner_texts()} == {"loader"}
    page.get_by_placeholder("Filter tracks").fill("none of them")
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="Collapse all").click()
    page.wait_for_function("() => !document.querySelector('.tl-label')")
    headings = page.locator(".tl-heading")
    assert headings.count() == 3
    # The row beside the heading can be clicked: it is that of the main thread.
    box, area = headings.nth(1).bounding_box(), page.locator(".tl-area").bounding_box()
    page.mouse.click(area["x"] + area["width"] * 40 / 50, box["y"] + box["height"] / 2)
    chosen(page, "forward 1")
    assert page.get_by_role("button", name="Expand all").is_visible()
    # Who follows a link to the span sees its process open.
    page.reload()
    page.get_by_role("button", name="Collapse all").wait_for()


def test_time_is_measured_from_one_span_to_another(visit, served, device_trace):
    page = open_timeline(visit, served, device_trace)
    page.mouse.click(*place(page, 40 * US, 0))
    chosen(page, "aten::mm")
    page.keyboard.press("m")
    page.get_by_text("Choose another span to measure").wait_for()
    page.mouse.click(*place(page, 240 * US, 0))
    measured = page.locator(".tl-measured")
    measured.wait_for()
    assert measured.inner_text().split("\n")[-2:] == ["starts 200 µs after it", "120 µs between them"]
    page.reload()
    measured.wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('from=')")


def test_names_of_any_kind_are_texts(visit, served):
    script = "<img src=x onerror=\"document.title='taken'\">\u202egnirts"
    builder = TraceBuilder()
    builder.span(script, 0, 60 * US)
    builder.span("x" * 1_000_000, 60 * US, 40 * US)
    trace = builder.build()
    page = open_timeline(visit, served, trace)
    page.mouse.click(*place(page, 30 * US, 0, end_ns=100 * US, rows=1))
    chosen(page, "onerror")
    page.mouse.click(*place(page, 80 * US, 0, end_ns=100 * US, rows=1))
    chosen(page, "xxxx")
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280


def test_a_trace_with_nothing_in_it_says_so(visit, served):
    page = visit.open(served.address(TraceBuilder().build(), "timeline"))
    assert "has no spans" in page.locator(".nothing").inner_text()


def test_on_a_telephone_nothing_of_the_timeline_lies_on_another_or_beyond_the_screen(
    visits, served, device_trace
):
    page = visits(viewport={"width": 390, "height": 844}).open(served.address(device_trace, "timeline"))
    search, arrows, *others = (
        one.bounding_box()
        for one in (
            page.get_by_role("searchbox", name="Search spans by name"),
            page.get_by_text("All arrows"),
            page.get_by_role("button", name="Keyboard and mouse"),
            page.get_by_role("button", name="CSV"),
            page.get_by_role("heading", name="In view"),
        )
    )
    assert search["y"] + search["height"] <= arrows["y"]
    assert all(one["x"] + one["width"] <= 390 for one in (search, arrows, *others))
