"""The public trace: opening, reading, cutting, merging and saving it."""

from kinetoscope.combine.concatenate import concatenate
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.dictionary import Column, Table
from kinetoscope.model.processes import Placement
from kinetoscope.model.schema import STORED, Phase, SpanKind
from kinetoscope.trace.opening import open  # noqa: A004  (the verb is `kinetoscope.open`)
from kinetoscope.trace.trace import Trace

__all__ = [
    "STORED",
    "Column",
    "Phase",
    "Placement",
    "SpanKind",
    "Table",
    "Trace",
    "concatenate",
    "merge_processes",
    "open",
    "opening",
    "page",
    "tables",
]
