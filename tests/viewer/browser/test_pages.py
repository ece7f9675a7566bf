"""Every page on a training run and on real traces of GPUs: served and as a report, with the numbers of the tables.

That no page complains or asks anything of another machine is checked after each test by `visit`.
"""

import re
from pathlib import Path
from urllib.parse import quote

import pytest

import kinetoscope
from kinetoscope.viewer.server.report import PAGES as REPORTED
from kinetoscope.viewer.server.report import report
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.tracks import whole_of
from tests.support.effort import STRESS
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder

DECLARED = Path(__file__).parents[3] / "web" / "src" / "pages" / "pages.ts"
# The pages that a report can have, in the order of the navigation.
PAGES = {
    name: title
    for name, title in re.findall(r'name: "(\w+)", title: "([^"]+)"', DECLARED.read_text("utf-8"))
    if name in REPORTED
}
ON_GPUS = ("a100_alexnet_small", "h100_owlv2_stack_mem", "mi300_resnet_stack_rccl_rank0of8")
# What a page would say of a value that it should not have shown.
BROKEN = re.compile(r"\b(NaN|undefined|Infinity|\[object \w+\]|The viewer failed)\b")
# Waits until the fonts are there and two frames draw equally many rows.
SETTLED = """async () => {
    await document.fonts.ready;
    for (let before = -1, drawn = 0; before !== drawn; ) {
        before = drawn;
        await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
        drawn = document.querySelectorAll('main .table .body .row').length;
    }
}"""
ROWS = """() => [...document.querySelectorAll('main .table .body .row')].map(
    (row) => [...row.querySelectorAll('.cell')].map((cell) => `${cell.textContent}\\n${cell.title}`))"""


def titles(page):
    return page.locator("nav a").all_inner_texts()


def pages_shown(visit, address_of, names):
    """The rows of the tables of each page, and what it says."""
    found = {}
    for name in names:
        page = visit.open(address_of(name))
        if name == "timeline":
            page.wait_for_selector(".tl-panel .body .row")
        text = page.locator("main").inner_text()
        assert not BROKEN.search(text), (name, BROKEN.search(text)[0])
        assert page.locator("main .problem").all_inner_texts() == [], name
        assert page.title().startswith(PAGES[name])
        page.evaluate(SETTLED)
        found[name] = page.evaluate(ROWS), text
    return found


def told(rows, name, number, unit="ns"):
    """Whether a row with a name has a number."""
    exact = f"{number:,} {unit}"
    return any(any(name in cell for cell in row) and any(exact in cell for cell in row) for row in rows)


def check_against_tables(trace, shown):
    """The largest rows of a page are those of the trace's table."""
    wanted = [("operators", "ops", "self_ns"), ("kernels", "kernels", "total_ns")]
    for page, table, column in wanted:
        largest = trace.table(table).sort_by([(column, "descending")]).slice(0, 5).to_pylist()
        for row in largest:
            assert told(shown[page][0], row["name"], row[column]), (page, row["name"], row[column])
    for row in answer(trace, "range", {"of": "work"}).slice(0, 3).to_pylist():
        assert told(shown["timeline"][0], row["name"], row["self_ns"]), row


def check(visit, served, trace, name, folder):
    """All pages of a trace, served and as a report."""
    # Served, the timeline shows a step at first; the tables of a report are of the whole trace.
    start, end = whole_of(trace)
    views = {"timeline": {"start": start, "end": end}}
    shown = pages_shown(visit, lambda page: served.address(trace, page, name, **views.get(page, {})), PAGES)
    # The server has the traces of other tests, too; test_compare.py looks at that page.
    assert [title for title in titles(visit.page) if title != "Compare"] == list(PAGES.values())
    check_against_tables(trace, shown)
    path = Path(report(trace, folder / "report.html"))
    held = pages_shown(visit, lambda page: f"{path.as_uri()}#/{page}", PAGES)
    assert titles(visit.page) == list(PAGES.values())
    for page in PAGES:
        # A long table draws as many rows as its height has room for, which is measured before or after the fonts are there.
        rows = min(len(held[page][0]), len(shown[page][0]))
        assert max(len(held[page][0]), len(shown[page][0])) <= rows + 1, page
        assert held[page][0][:rows] == shown[page][0][:rows], page


def test_a_training_run(visit, served, training, tmp_path):
    check(visit, served, training, "train_gpt.ktrace", tmp_path)


@pytest.mark.parametrize("name", ON_GPUS if STRESS else ON_GPUS[:1])
def test_a_real_trace(visit, served, name, tmp_path):
    with kinetoscope.open(real_trace(name)) as trace:
        check(visit, served, trace, name, tmp_path)


def test_a_report_shows_the_details_of_a_span(visit, training, tmp_path):
    path = report(training, tmp_path / "report.html")
    names = [training.strings[name] for name in training.column("spans", "name").tolist()]
    span = names.index("aten::addmm")
    page = visit.open(f"{path.as_uri()}#/timeline?span={span}")
    page.wait_for_selector(".tl-chosen h2")
    assert "addmm" in page.locator(".tl-chosen h2").inner_text()
    assert page.locator(".tl-facts dt", has_text="Module class").count() == 1
    duration = int(training.column("spans", "duration_ns")[span])
    assert page.locator(".tl-facts dd").first.get_attribute("title") == f"{duration:,} ns"


def test_a_report_says_what_needs_the_trace(visit, training, tmp_path):
    path = report(training, tmp_path / "report.html")
    page = visit.open(f"{path.as_uri()}#/timeline?find=addmm&range=1000-2000")
    page.locator(
        ".tl-range", has_text="For the sums of a range, open the trace with kinetoscope view"
    ).wait_for()
    page.get_by_role("status").get_by_text("matches are highlighted").wait_for()
    assert page.get_by_text("All arrows").count() == 0
    most = max(training.table("ops").to_pylist(), key=lambda row: row["count"])
    assert most["count"] > 50
    query = f"name={quote(most['name'])}&kind={most['kind']}"
    page.goto(f"{path.as_uri()}#/operators?{query}")
    page.get_by_text(f"the longest 50 of {most['count']:,} calls").wait_for()


def test_a_cut_report_says_so_on_the_page(visit, training, tmp_path):
    from kinetoscope.viewer.server.report import report_page

    path = tmp_path / "report.html"
    path.write_text(report_page(training, "run", most=500), encoding="utf-8")
    page = visit.open(f"{path.as_uri()}#/timeline")
    assert "The timeline of this report ends after" in page.locator("aside").inner_text()


def test_panels_show_source_lines_with_those_around_them(visit, served):
    code = {"2": "    for batch in loader:", "3": "        loss.item()", "4": "        save()"}
    builder = TraceBuilder().know("source_lines", {"/code/train.py": code})
    stack = builder.stack(("/code/train.py", 3, "train"))
    builder.span("aten::mm", 0, 2_000_000, stack=stack)
    builder.allocate(1_000, 0x10, 4096, stack=stack)
    trace = builder.build()
    for page_name, options, row in (
        ("operators", {"by": "line"}, ".row"),
        ("memory", {}, ".part .row"),
        ("timeline", {"span": "0"}, ""),
    ):
        page = visit.open(served.address(trace, page_name, **options))
        if row:
            page.locator(row).first.click()
        shown = page.locator(".excerpt")
        shown.wait_for()
        assert [line.strip() for line in shown.inner_text().splitlines()] == [
            "2 for batch in loader:",
            "3     loss.item()",
            "4     save()",
        ], page_name
