"""The overview and the health of a trace: their numbers are the tables', steps lead to the timeline, nothing is an empty frame."""

import itertools
import json
import re

import pytest

from kinetoscope.analyses.waterfall import parts_of_step
from kinetoscope.model import units
from tests.support.browser import until
from tests.support.request_marks import begin_mark, end_mark
from tests.support.server_trace import Server
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def stepped(count):
    """Steps of 20 ms, of which a device computes 10, copies 2 and waits."""
    builder = TraceBuilder()
    stream = builder.stream(7)
    for number in range(count):
        start = 20 * MS * number
        builder.step(number, start, 20 * MS)
        builder.span("aten::mm", start + MS, 2 * MS)
        builder.runtime("cudaLaunchKernel", start + MS, MS, correlation=number + 1)
        builder.kernel("gemm", start + 2 * MS, 10 * MS, stream=stream, correlation=number + 1)
        builder.copy("Memcpy DtoH (Device -> Pinned)", start + 12 * MS, 2 * MS, stream=stream, size_bytes=64)
    return builder.build()


def tile(page, title):
    """The number and what stands below it."""
    return page.locator(".ov-tile", has=page.locator("h2", has_text=title)).locator("p").all_inner_texts()


def led_to(page, query):
    """Waits until the address is that of a part of the timeline."""
    page.wait_for_function(
        "(query) => location.hash.startsWith('#/timeline?') && location.hash.endsWith(query)", arg=query
    )


def legend(page):
    """The parts of the steps, as they are written."""
    return [text.split("\n") for text in page.locator(".ov-steps .legend li").all_inner_texts()]


def test_numbers_are_those_of_the_tables(visit, served):
    trace = stepped(6)
    page = visit.open(served.address(trace, "overview"))
    rows = trace.table("breakdown").to_pylist()
    whole = sum(row["duration_ns"] for row in rows)
    shares = {name: 100 * sum(row[name] for row in rows) / whole for name in ("compute_ns", "copy_ns")}
    assert tile(page, "Step") == ["20 ms", "mean of 6, 95 % ≤ 20 ms"]
    assert tile(page, "Device busy") == [f"{sum(shares.values()):.1f} %", "of step time"]
    assert legend(page)[:2] == [
        ["Compute", f"{shares['compute_ns']:.1f} %"],
        ["Copies", f"{shares['copy_ns']:.1f} %"],
    ]
    kernels = page.locator("section[aria-label=Kernels] li").all_inner_texts()
    assert kernels[0].split("\n")[-2:] == ["60 ms", "100 %"]


def test_a_step_is_compared_with_the_others_and_leads_to_its_time(visit, served):
    builder = TraceBuilder()
    for number in range(4):
        builder.step(number, 20 * MS * number, 20 * MS).span("aten::mm", 20 * MS * number, 2 * MS)
        if number == 2:
            builder.span("aten::sort", 20 * MS * number + 5 * MS, 9 * MS)
    page = visit.open(served.address(builder.build(), "overview"))
    page.locator(".ov-rows a", has_text="Step 2").click()
    card = page.get_by_role("region", name="Step 2")
    assert card.locator(".body .row").first.inner_text().split("\n")[:3] == [
        "aten::sort",
        "operator",
        "+9 ms",
    ]
    assert card.locator(".legend li", has_text="operators").inner_text().split("\n")[-1] == "+9 ms"
    card.get_by_role("link", name="Show on the timeline").click()
    led_to(page, f"start={40 * MS}&end={60 * MS}")


def test_the_keyboard_chooses_among_many_steps(visit, served):
    page = visit.open(served.address(stepped(40), "overview"))
    chart = page.locator(".ov-chart")
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext").startswith("Step 38: 20 ms.")
    assert page.locator(".ov-tip").inner_text().startswith("Step 38")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Step 38").wait_for()


def test_host_time_is_a_place_of_its_own(visit, served):
    page = visit.open(served.address(stepped(4), "overview"))
    page.get_by_role("button", name="Host time").click()
    until(lambda: page.locator("section[aria-label=Kernels]").count() == 0, page)
    assert "time=host" in page.url
    page.go_back()
    page.locator("section[aria-label=Kernels]").wait_for()


def test_losses_are_told_in_one_line_that_leads_to_them(visit, served):
    trace = TraceBuilder().span("aten::mm", 0, 10).lose("recycled_spans", 12_345).build()
    page = visit.open(served.address(trace, "overview"))
    line = page.locator("a.ov-health")
    assert line.inner_text().split("\n")[-1].endswith("Times and counts are lower bounds")
    line.click()
    page.locator(".he-verdict.warn").wait_for()
    (loss,) = trace.table("losses").to_pylist()
    page.locator("section[aria-label='Losses'] .row", has_text=loss["what"]).wait_for()


@pytest.mark.parametrize("shown", ["overview", "health"])
def test_an_empty_trace_says_so(visit, served, shown):
    page = visit.open(served.address(TraceBuilder().build(), shown))
    page.get_by_text("The trace is empty").first.wait_for()
    assert "NaN" not in page.locator("main").inner_text()


def test_findings_come_first_and_lead_to_their_evidence(visit, served):
    code = {"2": "    for batch in loader:", "3": "        loss.item()", "4": ""}
    builder = TraceBuilder().know("source_lines", {"/code/train.py": code})
    stack = builder.stack(("/code/train.py", 3, "train"))
    for number in range(8):
        builder.step(number, number * 10 * MS, 10 * MS).span(
            "aten::mm", number * 10 * MS, 2 * MS, stack=stack
        )
    trace = builder.build()
    (finding,) = trace.findings().to_pylist()
    page = visit.open(served.address(trace, "overview"))
    card = page.locator("main .card").first
    assert card.get_by_role("heading").inner_text() == "Findings"
    for text in (finding["finding"], finding["advice"], "70.0 % of step time, at most 70.0 % to gain"):
        assert card.get_by_text(text).is_visible()
    assert not card.get_by_text("Cannot tell about memory-growth").is_visible()
    card.locator("summary", has_text=re.compile("lacks? data")).click()
    assert card.get_by_text("Cannot tell about memory-growth").is_visible()
    span = json.loads(finding["spans"])[0]
    hrefs = [link.get_attribute("href") for link in card.locator(".ov-links a").all()[:3]]
    number = page.url.partition("trace=")[2]
    prefix = f"trace={number}&" if number else ""
    assert hrefs == [
        f"#/stacks?{prefix}find=%2Fcode%2Ftrain.py%283%29",
        f"#/operators?{prefix}name=aten%3A%3Amm&kind=operator",
        f"#/timeline?{prefix}span={span}",
    ]
    card.locator("summary", has_text="loss.item()").click()
    assert card.locator(".excerpt").inner_text().splitlines()[:2] == [
        "2 for batch in loader:",
        "3     loss.item()",
    ]
    place = page.locator("section[aria-label='Your lines'] li .ov-named > :first-child").first
    assert place.evaluate("(place) => place.scrollWidth <= place.clientWidth")
    lines = page.locator("section[aria-label='Your lines'] li").first
    assert lines.inner_text().split("\n")[:2] == ["train.py:3", "loss.item()"]
    healthy = TraceBuilder()
    for number in range(8):
        healthy.step(number, number * 10 * MS, 10 * MS).span("aten::mm", number * 10 * MS, 10 * MS)
    page = visit.open(served.address(healthy.build(), "overview"))
    assert page.locator(".ov-findings").get_by_text("No problem found").is_visible()


def test_names_that_are_programs_are_texts(visit, served):
    script = "<img src=x onerror=\"document.title='taken'\">"
    builder = TraceBuilder().know("host_name", script).know("trainer", "\u202eevil" + "x" * 100_000)
    stack = builder.stack((script, 3, script))
    builder.span(script, 0, 100, stack=stack, module=builder.module(script))
    page = visit.open(served.address(builder.build(), "overview"))
    assert page.locator("main").get_by_text("onerror").count() >= 3
    assert page.locator("main img").count() == 0
    assert page.locator("main").bounding_box()["width"] <= 1280


@pytest.mark.parametrize("width", [700, 1280, 2560])
def test_nothing_reaches_beyond_the_page(visits, served, width):
    page = visits(viewport={"width": width, "height": 800}).open(served.address(stepped(40), "overview"))
    page.locator(".ov-chart svg").wait_for()
    assert page.evaluate(
        "() => document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth"
    )


def test_a_waterfall_leads_from_the_floor_to_the_step(visit, served):
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10 * MS, 10 * MS)
        builder.span("aten::mm", step * 10 * MS, 2 * MS, stack=builder.stack(("train.py", 3, "train")))
    trace = builder.build()
    page = visit.open(served.address(trace, "overview"))
    rows = page.locator(".ov-floor li")
    rows.first.wait_for()
    shown = [text.split("\n") for text in rows.all_inner_texts()]
    parts = parts_of_step(trace.account(), trace.account().kinds[0])
    assert [row[0] for row in shown] == [part.what for part in parts]
    assert [row[-1] for row in shown] == [units.duration(part.time_ns) for part in parts]
    boxes = [row.locator(".fall > span").bounding_box() for row in rows.all()]
    for before, after in itertools.pairwise(boxes):
        assert after["x"] == pytest.approx(before["x"] + before["width"], abs=2.5)
    page.locator(".ov-floor a", has_text="train.py:3").first.click()
    page.wait_for_function("location.hash.startsWith('#/stacks?')")


def test_an_incident_comes_first_and_leads_to_its_last_moment(visit, served):
    trace = TraceBuilder().step(0, 0, 10 * MS).span("aten::mm", 0, 2 * MS).build()
    trace.info["incident"] = {"reason": "hang", "what": "step 7 has not ended", "step": 7, "missing": [1]}
    page = visit.open(served.address(trace, "overview"))
    card = page.get_by_role("region", name="Incident")
    card.wait_for()
    assert card.locator("h2").inner_text() == "hang in step 7: step 7 has not ended"
    assert "rank 1" in card.locator("li").first.inner_text()
    card.get_by_text("Last moment on the timeline").click()
    page.wait_for_function(f"location.hash.includes('time={trace.duration_ns}')")


def test_the_request_that_takes_most_longer_than_usual_is_compared_with_the_others_of_its_name(visit, served):
    server = Server()
    for number in range(4):
        start, duration = 10 * MS * number, MS * (4 if number == 2 else 1)
        server.mark(begin_mark(number, "generate", ""), start, duration).operator(start, duration)
        server.mark(end_mark(number, "finished", ""), start + duration)
    page = visit.open(served.address(server.builder.build(), "overview"))
    card = page.locator("section[aria-label='Request 2']")
    assert "others of its name" in card.locator("header").inner_text()
    assert card.locator(".legend li").first.inner_text().split("\n") == ["operators", "+3 ms"]
    assert "aten::mm" in card.locator("[role=row]").nth(1).inner_text()
