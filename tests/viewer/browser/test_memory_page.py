"""The memory page while its answers are on their way: they come one after the other, and in any order."""

import pytest

from kinetoscope.viewer.server.report import report, write_memory_page
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize("first", ["memory/at", "memory/curve"])
def test_memory_is_divided_by_module_whichever_answer_comes_first(visit, served, training, first):
    page = visit.open(served.address(training, "memory"))
    page.locator(".readings .sum").wait_for()
    held = []
    last = "memory/curve" if first == "memory/at" else "memory/at"

    def hold(route):
        held.append(route)

    page.route(lambda address: last in address and "by=module" in address, hold)
    with page.expect_response(lambda answer: first in answer.url and "by=module" in answer.url):
        page.get_by_role("group", name="Group by").get_by_role("button", name="Module").click()
    page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => done(true)))")
    assert page.locator(".readings .sum").inner_text().startswith("live")
    assert len(held) == 1
    held[0].continue_()
    page.locator(".readings th", has_text="GPT").first.wait_for()


def query(page):
    return dict(part.split("=") for part in page.url.partition("?")[2].split("&") if part)


def test_the_curve_is_read_clicked_and_zoomed(visit, served, training):
    page = visit.open(served.address(training, "memory"))
    plot = page.locator(".chart .u-over")
    plot.wait_for()
    assert page.locator(".readings caption").inner_text().startswith("At the peak,")
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    at = lambda share: box["x"] + share * box["width"]  # noqa: E731
    page.mouse.move(at(0.5), middle)
    page.locator(".readings caption", has_text="At ").wait_for()
    assert page.locator(".readings caption").inner_text().startswith("At ")
    page.mouse.click(at(0.3), middle)
    page.wait_for_function("() => location.hash.includes('time=')")
    assert 0 < int(query(page)["time"]) < training.duration_ns / 2
    page.locator(".chart").press("ArrowRight")
    page.mouse.move(at(0.6), middle)
    page.mouse.down()
    page.mouse.move(at(0.9), middle, steps=4)
    page.mouse.up()
    page.wait_for_function("() => location.hash.includes('start=')")
    start, end = (int(query(page)[name]) for name in ("start", "end"))
    assert 0.5 < start / training.duration_ns < end / training.duration_ns < 1
    page.get_by_role("button", name="Whole run").click()
    page.wait_for_function("() => !location.hash.includes('start=')")


def test_the_curve_of_a_report_is_read_at_the_peak(visit, training, tmp_path):
    path = report(training, tmp_path / "memory.html", pages=["memory"])
    page = visit.open(f"{path.as_uri()}#/memory")
    page.locator(".chart canvas").wait_for()
    assert page.locator(".readings caption").inner_text().startswith("At the peak,")
    assert page.locator("nav a").all_inner_texts() == ["Memory"]


def test_a_memory_page_shows_its_notice_and_the_chosen_device(visit, tmp_path):
    builder = TraceBuilder().know("profile_memory", True).span("aten::empty", 0, 100)
    for device, size in (((0, 0), 9000), ((1, 0), 400)):
        builder.allocate(10, 0x10, size, device=device)
    write_memory_page(
        builder.build(), tmp_path / "m.html", "cuda:0", notice="Out of memory: <b>no</b> & more"
    )
    page = visit.open((tmp_path / "m.html").as_uri())
    page.locator(".chart canvas").wait_for()
    assert page.locator("pre.notice").inner_text() == "Out of memory: <b>no</b> & more"
    assert "400 B" in page.locator(".readings").inner_text()
