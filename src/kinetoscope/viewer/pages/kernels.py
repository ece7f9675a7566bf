"""Kernels and copies as the page of the device shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import number_array, to_arrow, to_numpy
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.device.copies import copies as copies_table
from kinetoscope.tables.device.kernels import KERNELS_SCHEMA
from kinetoscope.tables.device.kernels import kernels as kernels_table
from kinetoscope.viewer.pages.operators import MOST_REPORTED_CALLS
from kinetoscope.viewer.server.requests import MOST_ROWS, Limited, choice

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.requests import Query

TENSOR_CORES = Column(
    "tensor_cores",
    "bool",
    "",
    "Whether its name says that it uses tensor cores (matrix cores on AMD): an instruction such as `s16816`, `hmma`, `gmma` or"
    " `MI32x32x8`, or a family such as `tensorop`,"
    " `xmma`, `nvjet`, `xdlops`. No for names that say the opposite, such as `simt` or"
    " `sgemm`; null where the name does not tell.",
)

# An instruction of tensor cores by the shape of its matrices, or a family of kernels that is made of such.
_USES = re.compile(
    r"tensorop|wmma|[hiqud]mma|gmma|mma[_.]sync|tcgen05|nvjet|xmma_|warpgroup|warpspecialized"
    r"|[a-z](884|1688|8816|8832|16816|16832|16864|161616|168256)(gemm|fprop|dgrad|wgrad|conv|_|$)"
    r"|tensor\d+x\d+x\d+|fmha_v\d+|flash_(fwd|bwd)|fmha_cutlass[fb]_(f16|bf16)\w*_sm(70|75|80|90)"
    r"|xdlops|_xdl_|mfma|_mi(16|32|4)x(16|32|4)x\d|igemm_\w+_gtcx",
    re.IGNORECASE,
)
_USES_NOT = re.compile(
    r"simt|(^|_)(maxwell|volta|turing|ampere)_(s|d|c|z)gemm|convolve_sgemm|gemv", re.IGNORECASE
)


def kernels(trace: Trace, query: Query) -> Limited:
    """Respond to `kernels`: the table of kernels `by` name or launch, and whether their names imply tensor cores.

    Raises:
        ArgumentError: Another value of `by`.
    """
    way = choice(query, "by", ("name", "launch"))
    found: pyarrow.Table = trace.cached(f"viewer: kernels {way}", lambda: _kernels(trace, way))
    return Limited(found.slice(0, MOST_ROWS), found.num_rows)


def uses_tensor_cores(name: str) -> bool | None:
    """Whether the name of a kernel implies tensor cores; None where it implies neither."""
    if _USES_NOT.search(name):
        return False
    return True if _USES.search(name) else None


def _kernels(trace: Trace, way: str) -> pyarrow.Table:
    """The table with one more column."""
    import pyarrow as pa

    table = kernels_table(trace, by=way)
    by_name = {name: uses_tensor_cores(name) for name in table["name"].unique().to_pylist()}
    values = number_array(np.array([by_name[name] for name in table["name"].to_pylist()], dtype=bool))
    field = pa.field("tensor_cores", pa.bool_(), metadata={"meaning": TENSOR_CORES.meaning})
    return table.add_column(KERNELS_SCHEMA.column_names.index("operator"), field, values)


COPIES_SCHEMA = Table(
    "copies",
    "Copies and memsets by source and destination. Largest total time first.",
    (
        Column("direction", "category", "", "Source and destination: host (H), device (D) or another device (P); null for memsets."),
        Column("kind", "category", "", "`memcpy` or `memset`."),
        Column("source", "category", "", "The source memory: `pageable`, `pinned`, `device` and others."),
        Column("target", "category", "", "The destination memory."),
        Column("operator", "category", "", "The operator or range that launched it; null where not grouped by it, or unknown."),
        Column("count", "int64", "", "How many.", 0),
        Column("total_ns", "int64", "ns", "Total duration.", 0),
        Column("mean_ns", "float64", "ns", "Mean duration."),
        Column("max_ns", "int64", "ns", "The longest.", 0),
        Column("bytes", "int64", "bytes", "Bytes written; null if no sizes were recorded."),
        Column("gb_per_s", "float64", "GB/s", "`bytes` by the time of those where both are known, in 10^9 bytes a second."),
        Column("min_gb_per_s", "float64", "GB/s", "The slowest of them."),
        Column("max_gb_per_s", "float64", "GB/s", "The fastest of them."),
        Column("blocked", "int64", "", "For how many of them the host waited.", 0),
        Column("blocked_ns", "int64", "ns", "How long these took.", 0),
    ),
)  # fmt: skip
_KEYS = ("direction", "kind", "source", "target")


def copies(trace: Trace, query: Query) -> Limited:
    """Respond to `copies`: copies and fillings `by` direction, or by direction and operator.

    Raises:
        ArgumentError: Another value of `by`.
    """
    way = choice(query, "by", ("direction", "operator"))
    found: pyarrow.Table = trace.cached(f"viewer: copies {way}", lambda: _copies(trace, way))
    return Limited(found.slice(0, MOST_ROWS), found.num_rows)


def _copies(trace: Trace, way: str) -> pyarrow.Table:
    """Copies by direction."""
    import pyarrow as pa

    one = copies_table(trace)
    names = (*_KEYS, "operator") if way == "operator" else _KEYS
    ids = []
    for name in names:
        indices = one[name].combine_chunks().indices.fill_null(-1)
        ids.append(to_numpy(pa.chunked_array([indices])).astype(np.int32))
    group, first = _core.group(ids)
    groups = len(first)

    def number(name: str, none: float) -> Any:
        return to_numpy(one[name].fill_null(none))

    duration, size, rate = number("duration_ns", 0), number("bytes", -1), number("gb_per_s", np.nan)
    blocked = to_numpy(one["blocked"].fill_null(False))
    known = (size >= 0) & (duration > 0)
    total, count = _core.group_sums(group, groups, duration), _core.group_counts(group, groups)
    sized = np.bincount(group[size >= 0], minlength=groups)
    rated = _core.group_sums(group, groups, np.where(known, duration, 0))
    slowest, fastest = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(slowest, group[known], rate[known])
    np.maximum.at(fastest, group[known], rate[known])
    moved = _core.group_sums(group, groups, np.where(known, size, 0))
    keys = {name: one[name].take(number_array(first)).to_pylist() for name in names}
    table = to_arrow(COPIES_SCHEMA, {
        "operator": None,
        **keys,
        "count": count,
        "total_ns": total,
        "mean_ns": total / np.maximum(count, 1),
        "max_ns": _core.group_max(group, groups, duration),
        "bytes": np.where(sized > 0, _core.group_sums(group, groups, np.maximum(size, 0)), -1),
        "gb_per_s": moved / np.where(rated > 0, rated, np.nan),
        "min_gb_per_s": np.where(np.isfinite(slowest), slowest, np.nan),
        "max_gb_per_s": np.where(np.isfinite(fastest), fastest, np.nan),
        "blocked": _core.group_sums(group, groups, blocked.astype(np.int64)),
        "blocked_ns": _core.group_sums(group, groups, np.where(blocked, duration, 0)),
    })  # fmt: skip
    return table.take(np.argsort(-total, kind="stable"))


_MOST_REPORTED = 80


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """What a report includes: all tables, and the details of the kernels with the most time."""
    requests: list[tuple[str, dict[str, str]]] = [
        ("kernels", {}),
        ("kernels", {"by": "launch"}),
        ("copies", {}),
        ("copies", {"by": "operator"}),
        ("table/copies", {}),
    ]
    for name in kernels(trace, {}).table["name"].unique().to_pylist()[:_MOST_REPORTED]:
        requests += [(path, {"name": name, "kind": "kernel"}) for path in ("chosen", "histogram")]
        requests.append(("instances", {"name": name, "kind": "kernel", "limit": str(MOST_REPORTED_CALLS)}))
    return requests
