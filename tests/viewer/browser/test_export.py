"""What the page gives away as files that it makes itself, and reports."""

import base64
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.support.trace_builder import TraceBuilder

COLORS = """async (letters) => {
    const image = new Image();
    image.src = `data:image/png;base64,${letters}`;
    await image.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
    return [image.width, image.height, new Set(pixels).size];
}"""


def downloaded(page, name, role="button"):
    """What is saved by a click."""
    with page.expect_download() as download:
        page.get_by_role("dialog", name="Export").get_by_role(role, name=name, exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_a_page_is_a_picture_and_the_trace_a_report(visit, served):
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, 1000 * number, 1000).span("aten::mm", 1000 * number, 500)
    page = visit.open(served.address(builder.build(), "timeline", start=0, end=3000))
    page.locator(".tl-range .row").first.wait_for()
    page.get_by_role("button", name="Export").click()
    name, picture = downloaded(page, "PNG")
    assert name == "timeline.png"
    width, height, colors = page.evaluate(COLORS, base64.b64encode(picture).decode())
    assert [width, height] == page.evaluate("() => [document.querySelector('main').clientWidth, innerHeight]")
    # Letters have soft edges, and the boxes of the canvas a color each.
    assert colors > 50
    name, drawing = downloaded(page, "SVG")
    root = ET.fromstring(drawing)
    assert (name, root.tag) == ("timeline.svg", "{http://www.w3.org/2000/svg}svg")
    assert "Timeline" in "".join(root.itertext())
    assert len(list(root.iter("{http://www.w3.org/1999/xhtml}img"))) == 4
    name, report = downloaded(page, "Report", role="link")
    assert name == "trace.from-0.000ms.html"
    assert b'id="kinetoscope-report"' in report
