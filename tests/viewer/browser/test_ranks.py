"""The page Ranks in a browser: the map, one cell of it, and the way to the traces."""

import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope.cli import main
from tests.summaries.test_job import COMPUTE_NS, rank_trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four ranks, of which the last is late, with their traces."""
    folder = tmp_path_factory.mktemp("ranks")
    arrivals = [[COMPUTE_NS + (rank == 3) * 2_000_000 for _ in range(8)] for rank in range(4)]
    paths = [folder / f"rank{rank}.ktrace" for rank in range(4)]
    for rank, own in enumerate(arrivals):
        rank_trace(rank, own, arrivals[3]).save(paths[rank])
    kinetoscope.summarize(*paths, output=folder / "summaries")
    return folder


@pytest.fixture(scope="module")
def viewer(folder):
    with kinetoscope.view(folder / "summaries", browser=False, wait=False, port=0) as viewer:
        yield viewer


def test_a_cell_leads_to_its_collectives_and_to_two_timelines(visit, viewer):
    page = visit.open(viewer.address)
    assert page.locator("nav a").all_inner_texts() == ["Ranks"]
    page.wait_for_selector(".heat canvas")
    # The bottom left cell of the map: rank 3 in the first step.
    box = page.locator(".heat canvas").bounding_box()
    page.mouse.click(box["x"] + 84, box["y"] + box["height"] - 28)
    page.wait_for_selector("text=Rank 3, step 0")
    assert "late: rank 3" in page.locator("svg.arrivals").get_attribute("aria-label")
    page.locator(".heat").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h2:text-is('Rank 2, step 1')")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Click a cell")
    # The latest rank is now the first one.
    page.get_by_label("Order").select_option("late_ns")
    page.get_by_label("Color").select_option("duration_ns")
    page.mouse.click(box["x"] + 84, box["y"] + 4)
    page.wait_for_selector("text=Rank 3, step 0")
    page.get_by_role("button", name="Timelines of this and a median rank").click()
    page.wait_for_selector("h1:text-is('Compare')")
    page.wait_for_selector("select[aria-label='Base']")
    options = page.get_by_label("Base").locator("option").all_inner_texts()
    assert len(options) == 2
    assert "rank3.ktrace" in options


def test_a_report_has_the_map_and_what_is_behind_its_late_cells(visit, folder, tmp_path):
    made = CliRunner().invoke(
        main, ["ranks", str(folder / "summaries"), "--html", str(tmp_path / "job.html")]
    )
    assert made.exit_code == 0, made.output
    page = visit.open((tmp_path / "job.html").as_uri())
    assert page.locator("nav a").all_inner_texts() == ["Ranks"]
    page.wait_for_selector(".heat canvas")
    page.locator(".heat").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("svg.arrivals circle.late")
    assert page.get_by_role("button", name="Timelines").count() == 0
    for wrong in (["--csv"], ["--table", "ranks"]):
        refused = CliRunner().invoke(main, ["ranks", str(folder / "summaries"), "--html", "x.html", *wrong])
        assert refused.exit_code == 2
