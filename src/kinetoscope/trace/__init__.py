"""What a trace is: its tables, columns, strings and completeness; and our own file."""

from kinetoscope.trace._beside import beside
from kinetoscope.trace._concatenate import concatenate
from kinetoscope.trace._open import open  # noqa: A004  (the verb is `kinetoscope.open`)
from kinetoscope.trace._placement import Placement
from kinetoscope.trace._schema import STORED, Column, Phase, SpanKind, Table
from kinetoscope.trace._trace import Trace

__all__ = [
    "STORED",
    "Column",
    "Phase",
    "Placement",
    "SpanKind",
    "Table",
    "Trace",
    "beside",
    "concatenate",
    "open",
]
