"""How long the operators, kernels and modules of a job ran, on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import integers, number_array, to_arrow, to_numpy
from kinetoscope.model.schema import Column, Table
from kinetoscope.summaries.sections import Sections, codes_of
from kinetoscope.summaries.sketch import Sketches

if TYPE_CHECKING:
    import pyarrow

DURATIONS = Table(
    "durations",
    "How long an operator, kernel or module ran on all ranks, the one with most time first. Quantiles are exact to 1 %.",
    (
        Column("kind", "category", "", "`operator`, `kernel` or `module`."),
        Column("name", "category", "", "The name, or the path of the module."),
        Column("ranks", "int64", "", "On how many ranks it ran."),
        Column("count", "int64", "", "How many calls; of a module, steps."),
        Column("total_ns", "int64", "ns", "Their time: self time of operators and modules."),
        Column("median_ns", "float64", "ns", "The median."),
        Column("p95_ns", "float64", "ns", "The 95th percentile."),
        Column("p99_ns", "float64", "ns", "The 99th percentile."),
    ),
)


def durations(sections: Sections) -> pyarrow.Table:
    """Return the table `durations`."""
    places: dict[tuple[str, str], int] = {}
    empty = np.zeros(0, dtype=np.int64)
    found = Sketches(empty, empty.astype(np.int16), empty, empty)
    on_ranks: list[int] = []
    for records in sections.batches("sketches"):
        group, first = _core.group([codes_of(records[column]) for column in ("kind", "name")])
        kinds, names = (records[column].take(number_array(first)).to_pylist() for column in ("kind", "name"))
        place = np.array(
            [places.setdefault(key, len(places)) for key in zip(kinds, names, strict=True)], dtype=np.int64
        )
        on_ranks += [0] * (len(places) - len(on_ranks))
        _, each = _core.group([group, to_numpy(records["row"]).astype(np.int32)])
        for one, count in zip(
            place.tolist(), np.bincount(group[each], minlength=len(first)).tolist(), strict=True
        ):
            on_ranks[one] += count
        found = found.joined(
            Sketches(
                place[group],
                integers(records["bucket"]).astype(np.int16),
                integers(records["count"]),
                integers(records["total_ns"]),
            )
        )
    groups = len(places)
    of_group = found.group.astype(np.int32)
    total = _core.group_sums(of_group, groups, found.total)
    columns: dict[str, Any] = {
        "kind": [kind for kind, _ in places],
        "name": [name for _, name in places],
        "ranks": np.array(on_ranks, dtype=np.int64),
        "count": _core.group_sums(of_group, groups, found.count),
        "total_ns": total,
    }
    columns |= {
        column: found.quantile(part, groups)
        for column, part in (("median_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99))
    }
    return to_arrow(DURATIONS, columns, np.argsort(-total, kind="stable"))
