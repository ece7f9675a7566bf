"""The SQL page: asking, being refused, examples, and what leads to the timeline."""

import pytest

pytest.importorskip("duckdb")

from tests.support.trace_builder import TraceBuilder
from tests.support.window_of_perfetto import PerfettosWindow


def trace():
    return TraceBuilder().span("aten::mm", 0, 100).span("<b>bold</b>", 200, 50).build()


def test_a_query_is_asked_and_its_rows_lead_to_the_timeline(visit, served):
    page = visit.open(served.address(trace(), "sql"))
    page.get_by_label("Query").fill(
        "select id as span, name, duration_ns from spans order by duration_ns desc"
    )
    page.get_by_label("Query").press("Control+Enter")
    rows = page.locator(".table .body .row")
    rows.first.wait_for()
    assert rows.all_inner_texts() == ["0\naten::mm\n100 ns", "1\n<b>bold</b>\n50 ns"]
    assert page.get_by_text("2 rows in").count() == 1
    assert "q=select" in page.url
    rows.first.click()
    page.wait_for_function("() => location.hash.startsWith('#/timeline')")
    assert "span=0" in page.url
    page.go_back()
    page.wait_for_function("() => document.querySelector('textarea')?.value.startsWith('select id')")


def test_it_opens_with_a_query_that_has_run_and_completes_words(visit, served):
    page = visit.open(served.address(trace(), "sql"))
    page.locator(".table .body .row", has_text="aten::mm").wait_for()
    field = page.get_by_label("Query")
    assert field.input_value().startswith("select name, kind")
    assert page.locator(".sql-editor .sql-keyword").first.inner_text() == "select"
    field.fill("")
    page.keyboard.type("select dur")
    page.get_by_role("option", name="duration_ns").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.type(" from spa")
    page.keyboard.press("Enter")
    assert field.input_value() == "select duration_ns from spans"
    page.keyboard.press("Control+Enter")
    page.get_by_text("2 rows in").wait_for()


def test_what_duckdb_refuses_is_said_and_costs_nothing(visit, served):
    page = visit.open(served.address(trace(), "sql", q="select * from '/etc/passwd'"))
    said = page.get_by_role("alert")
    said.wait_for()
    assert "does not exist" in said.inner_text() or "disabled" in said.inner_text()
    assert [text for text in visit.complaints if "400" not in text] == []
    visit.complaints.clear()
    page.get_by_label("Examples").select_option(label="The tables")
    page.locator(".table .body .row").first.wait_for()
    assert page.get_by_role("alert").count() == 0


def test_a_part_is_handed_over_to_perfetto_and_to_nobody_else(visit, served):
    with PerfettosWindow() as perfetto:
        served_trace = trace()
        address = served.address(served_trace, "operators")
        # The page as a server would give it that was started with `--perfetto-ui`.
        visit.page.route(
            "**/api/options", lambda route: route.fulfill(json={"perfetto_ui": perfetto.address})
        )
        page = visit.open(address)
        page.get_by_role("button", name="Export").click()
        with page.expect_popup() as opened:
            page.get_by_role("button", name="Open in Perfetto").click()
        page.get_by_text("Opened in Perfetto.").wait_for()
        beside = opened.value
        assert beside.evaluate("() => window.given.fileName") == "kinetoscope.pftrace"
        count = beside.evaluate("() => window.given.buffer.byteLength")
        assert count == beside.evaluate("() => window.bytes") > 100
        # Its own window is what was opened on purpose.
        assert all(one.startswith(perfetto.address) for one in visit.strayed)
        visit.strayed.clear()
        visit.complaints[:] = [
            text for text in visit.complaints if "favicon" not in text and "404" not in text
        ]
