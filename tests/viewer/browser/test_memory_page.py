"""The memory page while its answers are on their way: they come one after the other, and in any order."""

import pytest


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
