"""The frame around all pages: navigation, traces, dark and light; and that nothing reaches out."""

import json

from tests.support.trace_builder import TraceBuilder


def test_the_page_names_the_trace_and_links_its_pages(visit, served):
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    page = visit.open(served.address(trace, "operators", name="run.ktrace"))
    assert page.title() == "Operators · run.ktrace · Kinetoscope"
    current = page.locator("nav a[aria-current=page]")
    assert current.all_inner_texts() == ["Operators"]
    page.locator("nav a", has_text="Timeline").click()
    page.wait_for_function("() => document.title.startsWith('Timeline')")
    page.go_back()
    page.wait_for_function("() => document.title.startsWith('Operators')")


def test_dark_and_light_change_places(visits, served):
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    address = served.address(trace, "operators")
    grounds = {}
    for scheme in ("light", "dark"):
        page = visits(color_scheme=scheme).open(address)
        grounds[scheme] = page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
    assert grounds["light"] != grounds["dark"]
    page.get_by_role("button", name="Light").click()
    page.wait_for_function(
        "(light) => getComputedStyle(document.documentElement).backgroundColor === light",
        arg=grounds["light"],
    )


def test_names_that_are_programs_are_texts(visit, served):
    script = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    trace = TraceBuilder().span(script, 0, 100).build()
    page = visit.open(served.address(trace, "operators", name=script))
    assert page.locator("main").get_by_text("onerror").count() >= 1
    assert page.locator("main img, main script").count() == 0
    assert page.title().endswith("· Kinetoscope")


def test_what_asks_another_machine_is_noted_and_gets_nothing(visit, served):
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    page = visit.open(served.address(trace, "operators"))
    asked = "() => fetch('http://elsewhere.invalid/x').then(() => 'answered', () => 'refused')"
    assert page.evaluate(asked) == "refused"
    # The policy of the page forbids it before it is asked for; the browser says so.
    assert len(visit.complaints) >= 1
    assert "Content Security Policy" in visit.complaints[0]
    visit.complaints.clear()
    visit.strayed.clear()


def test_a_question_that_fails_is_told_on_the_page(visit, served):
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    address = served.address(trace, "operators")
    visit.page.route(
        "**/operators*",
        lambda route: route.fulfill(status=409, body=json.dumps({"error": "The file was cut."})),
    )
    page = visit.open(address)
    assert page.get_by_role("alert").all_inner_texts() == ["The file was cut."]
    assert [text for text in visit.complaints if "409" not in text] == []
    visit.complaints.clear()
