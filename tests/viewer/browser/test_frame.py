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


def test_keys_work_on_every_page(visit, served):
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    page = visit.open(served.address(trace, "operators"))
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("go to a page, or search for a name").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("mm?")
    assert page.get_by_label("Filter operators").input_value() == "mm?"
    page.keyboard.press("Control+k")
    page.keyboard.type("timeli")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.title.startsWith('Timeline')")
    page.keyboard.press("Control+k")
    page.keyboard.type("aten::mm")
    page.get_by_role("button", name="Filter operators: aten::mm").click()
    page.wait_for_function("() => location.hash.includes('operators.find=aten%3A%3Amm')")
    # The overview has no list of its own to search.
    page.locator("nav a", has_text="Overview").click()
    page.wait_for_function("() => document.title.startsWith('Overview')")
    page.keyboard.press("/")
    page.keyboard.type("aten::mm")
    page.get_by_role("button", name="Filter operators: aten::mm").click()
    page.wait_for_function("() => location.hash.includes('operators.find=aten%3A%3Amm')")


def test_pages_without_anything_are_dimmed_with_the_reason(visit, served):
    builder = TraceBuilder()
    builder.span("aten::mm", 0, 100, stack=builder.stack(("train.py", 3, "train")))
    page = visit.open(served.address(builder.build(), "overview"))
    page.locator("nav a.empty").first.wait_for()
    assert page.locator("nav a.empty").all_inner_texts() == ["Kernels", "Modules", "Memory"]
    assert "with_modules=True" in page.locator("nav a", has_text="Modules").get_attribute("title")


def test_a_name_is_cut_in_its_middle_and_its_column_can_be_wider(visit, served):
    name = "a_function_with_a_very_long_name_that_never_fits_anywhere_at_all::forward_of_all"
    trace = TraceBuilder().span(name, 0, 100).span("aten::mm", 200, 50).build()
    page = visit.open(served.address(trace, "operators"))
    tail = page.locator(".row .middle > :last-child")
    assert tail.inner_text() == "forward_of_all"
    assert tail.evaluate("(tail) => tail.scrollWidth <= tail.clientWidth")
    width = "() => document.querySelector('.row .cell.first').clientWidth"
    before = page.evaluate(width)
    page.get_by_role("separator", name="Width of Name").press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('operators.width=')")
    assert page.evaluate(width) > before
    # Where all operators have the prefix it tells nothing; here one has not.
    assert page.locator(".row .cell.first").all_inner_texts()[1] == "aten::mm"


def test_a_step_is_chosen_once_for_all_pages(visit, served):
    builder = TraceBuilder()
    for number in range(3):
        stack = builder.stack(("train.py", number, "train"))
        builder.step(number, 1000 * number, 1000)
        builder.span(f"aten::mm{number}", 1000 * number, 500, stack=stack)
    page = visit.open(served.address(builder.build(), "operators"))
    page.get_by_label("Part of the trace").select_option(label="Step 1, 1 µs")
    page.locator(".row .first", has_text="mm0").wait_for(state="detached")
    assert sorted(page.locator(".row .first").all_inner_texts()) == ["ProfilerStep*", "mm1"]
    page.locator("nav a", has_text="Stacks").click()
    page.locator(".stacks-below .row", has_text="aten::mm1").wait_for()
    assert page.locator(".stacks-below .row", has_text="aten::mm2").count() == 0
    page.locator("nav a", has_text="Overview").click()
    page.locator(".ov-rows a").nth(2).wait_for()
    page.locator("nav a", has_text="Operators").click()
    page.get_by_label("Part of the trace").select_option(label="Whole trace")
    page.locator(".row .first", has_text="mm2").wait_for()


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
