"""Windows of rows with what is seen through them, which the page's own reading is tested with too.

`python -m tests.support.window_vectors` writes the file anew.
"""

import json
from pathlib import Path

import numpy as np

from kinetoscope.viewer.timeline.rows import Rows
from kinetoscope.viewer.timeline.window import visible_boxes

PATH = Path(__file__).parents[1] / "golden" / "viewer_window.json"

_ROWS = {
    "nothing": [[]],
    "some": [[(0, 10), (10, 5), (20, 0), (20, 30), (60, 1)], [(2, 3), (7, 1)], [], [(25, 5)]],
    "moments": [[(5, 0), (5, 0), (5, 0), (6, 0), (9, 1)]],
    "before the start": [[(-50, 20), (-10, 30), (40, 2)]],
    "hours later": [[(2**51 + 997 * number, 100 + number) for number in range(40)]],
    "crowded": [
        [(13 * number, 1 + number % 12) for number in range(400)],
        [(31 * number, number % 30) for number in range(150)],
    ],
}
_WINDOWS = {
    "nothing": [(0, 10, 4)],
    "some": [(0, 61, 61), (0, 61, 7), (0, 60, 1), (12, 30, 3), (9.5, 20.25, 5), (3, 3.5, 4), (100, 200, 3), (-20, -1, 2)],
    "moments": [(0, 10, 10), (5, 6, 3), (5.5, 6.5, 1), (0, 10, 1)],
    "before the start": [(-60, 60, 12), (-35, -5, 3), (0, 1, 1)],
    "hours later": [(2**51, 2**51 + 40_000, 16), (2**51 + 1234.5, 2**51 + 5678.25, 100), (0, 2**52, 1000)],
    "crowded": [(0, 5200, 40), (0, 5200, 1600), (1000.125, 1100.375, 33), (0, 5200, 7), (5199, 5200, 10)],
}  # fmt: skip


def vectors():
    """Rows as the page keeps them, and for each window what is seen: one entry of every list for each thing seen."""
    found = []
    for name, items in _ROWS.items():
        rows = laid_out(items)
        windows = []
        for start, end, width in _WINDOWS[name]:
            seen = visible_boxes(rows, 0, len(items), float(start), float(end), width)
            last = seen.item + seen.count - 1
            begin = rows.start_ns[seen.item]
            windows.append({
                "start": start, "end": end, "width": width,
                "seen": {
                    "row": seen.row.tolist(),
                    "item": seen.item.tolist(),
                    "count": seen.count.tolist(),
                    "start": begin.tolist(),
                    "duration": (rows.start_ns[last] + rows.duration_ns(last) - begin).tolist(),
                    "busy": (rows.sum_ns[last + 1] - rows.sum_ns[seen.item]).tolist(),
                },
            })  # fmt: skip
        found.append({
            "name": name,
            "rows": {
                "edges": rows.edges.tolist(),
                "start": rows.start_ns.tolist(),
                "duration": np.diff(rows.sum_ns).tolist(),
            },
            "windows": windows,
        })  # fmt: skip
    return found


def laid_out(items):
    """Rows of items, each a start and a duration."""
    start, duration = (
        np.array([item[part] for of_row in items for item in of_row], np.int64) for part in (0, 1)
    )
    edges = np.append(0, np.cumsum([len(of_row) for of_row in items]))
    return Rows(edges, start, np.append(0, np.cumsum(duration)))


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), separators=(",", ":")) + "\n", encoding="utf-8")
