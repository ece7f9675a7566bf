"""The page Compare, of two traces on the server and in a report."""

import pytest

import kinetoscope
from kinetoscope.viewer.server.report import comparison_page
from tests.comparison.test_runs import built

# One recording a side: what changed is told, and is no verdict on time.
RISE = "bytes allocated a step: 4 KiB more and 1 other count changed; time rose by about 5 %"


@pytest.fixture(scope="module")
def traces():
    return built(1), built(2, slower=0.05, line=40, scale=2)


def looked_at(page):
    """What the page says, once everything has come."""
    page.wait_for_selector(".cmp-steps canvas")
    page.wait_for_selector("section[aria-label='Times'] .row")
    return page.locator("main").inner_text()


def test_rows_open_in_both_traces(visit, served, traces):
    base, new = traces
    first = served.address(base, "overview", name="base.ktrace")
    assert first
    address = served.address(new, "compare", name="new.ktrace")
    number = address.partition("trace=")[2] or "0"
    page = visit.open(address + f"&base={int(number) - 1}&new={number}")
    text = looked_at(page)
    assert RISE in text
    assert "second (Linear)" in text
    falls = page.locator(".waterfall li").all_inner_texts()
    assert [fall.split("\n")[0] for fall in (falls[0], falls[-1])] == ["a step of base", "a step of new"]
    assert any("net.py:40" in fall for fall in falls[1:-1])
    row = page.locator("section[aria-label='Times'] .row", has_text="second (Linear)")
    assert "cannot tell" in row.inner_text()
    row.get_by_title("Show in base").click()
    page.wait_for_url(f"**trace={int(number) - 1}**")
    assert page.locator("h1").inner_text() == "Modules"
    page.go_back()
    looked_at(page)
    page.get_by_role("button", name="Source lines").click()
    page.wait_for_selector("text=net.py:40")


def test_a_report_has_the_page_alone(visit, traces, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page(kinetoscope.compare(*traces), *traces), "utf-8")
    page = visit.open(path.as_uri())
    text = looked_at(page)
    assert RISE in text
    assert page.locator("nav a").all_inner_texts() == ["Compare"]
    assert page.get_by_title("Show in base").count() == 0
