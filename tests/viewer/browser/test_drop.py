"""Trace files that are dropped on the page."""

import base64
import tempfile

import kinetoscope
from tests.support.trace_builder import TraceBuilder

DROP = """([name, letters]) => {
    const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name));
    document.body.dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data }));
}"""


def test_a_dropped_trace_is_opened_and_another_file_is_not(visit, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "dropped").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "dropped"))
    for name in ("first", "second"):
        TraceBuilder().span(f"aten::{name}", 0, 100).build().save(tmp_path / f"{name}.ktrace")
    with kinetoscope.view(tmp_path / "first.ktrace", port=0, browser=False, wait=False) as viewer:
        page = visit.open(viewer.address)
        content = (tmp_path / "second.ktrace").read_bytes()
        page.evaluate(DROP, ["../second.ktrace", base64.b64encode(content).decode()])
        page.wait_for_function("() => document.title.endsWith('second.ktrace · Kinetoscope')")
        page.locator("section[aria-label=Operators]", has_text="second").wait_for()
        assert page.get_by_label("Trace", exact=True).locator("option").all_inner_texts()[0] == "first.ktrace"
        page.evaluate(DROP, ["notes.txt", base64.b64encode(b"no trace").decode()])
        said = page.locator(".drop.shown", has_text="notes.txt")
        said.wait_for()
        assert str(tmp_path) not in said.inner_text()
        assert all("400" in text for text in visit.complaints)
        visit.complaints.clear()
        assert [path.name for path in (tmp_path / "dropped").rglob("*.ktrace")] == ["second.ktrace"]
    assert list((tmp_path / "dropped").iterdir()) == []
