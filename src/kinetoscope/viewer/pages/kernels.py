"""The page Kernels: kernels and copies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.arrow import number_array
from kinetoscope.model.schema import Column
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.device.kernels import KERNELS_SCHEMA
from kinetoscope.tables.device.kernels import kernels as kernels_table
from kinetoscope.viewer.pages.operators import MOST_REPORTED_CALLS
from kinetoscope.viewer.requests import MOST_ROWS, Limited, choice

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

TENSOR_CORES = Column(
    "tensor_cores",
    "bool",
    "",
    "Whether its name says that it uses tensor cores (matrix cores on AMD): an instruction such as `s16816`, `hmma`, `gmma` or"
    " `MI32x32x8`, or a family such as `tensorop`,"
    " `xmma`, `nvjet`, `xdlops`. No for names that say the opposite, such as `simt` or"
    " `sgemm`; null where the name does not tell.",
)

# The matrix shape of a tensor core instruction, or the name of a kernel family that uses tensor cores.
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
    """Respond to `kernels`: the table of kernels `by` name or launch configuration, and whether they use tensor cores, by their
    names.

    Raises:
        ArgumentError: `by` has an invalid value.
    """
    way = choice(query, "by", ("name", "launch"))
    found = _kernels(trace, way)
    return Limited(found.slice(0, MOST_ROWS), found.num_rows)


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel uses tensor cores, judged by its name; None if the name does not tell."""
    if _USES_NOT.search(name):
        return False
    return True if _USES.search(name) else None


@derived
def _kernels(trace: Trace, way: str) -> pyarrow.Table:
    """Return the table of kernels with a column for tensor cores."""
    import pyarrow as pa

    table = kernels_table(trace, by=way)
    by_name = {name: uses_tensor_cores(name) for name in table["name"].unique().to_pylist()}
    values = number_array(np.array([by_name[name] for name in table["name"].to_pylist()], dtype=bool))
    field = pa.field("tensor_cores", pa.bool_(), metadata={"meaning": TENSOR_CORES.meaning})
    return table.add_column(KERNELS_SCHEMA.column_names.index("operator"), field, values)


def copies(trace: Trace, query: Query) -> Limited:
    """Respond to `copies`: the table `copies` `by` direction, or by direction and operator.

    Raises:
        ArgumentError: `by` has an invalid value.
    """
    way = choice(query, "by", ("direction", "operator"))
    found = _copies(trace, way)
    return Limited(found.slice(0, MOST_ROWS), found.num_rows)


@derived
def _copies(trace: Trace, way: str) -> pyarrow.Table:
    return trace.table("copies", by=way)


_MOST_REPORTED = 80


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """List the requests for a report: all tables, and details of the kernels with the most time."""
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
