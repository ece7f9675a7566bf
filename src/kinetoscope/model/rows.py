"""The types of row numbers: mypy refuses the row of one table where that of another is needed.

A row number is the place of a row in the stored table of its type's name, from 0; -1 means none. Columns hold them as int32.
"""

from __future__ import annotations

from typing import NewType

SpanRow = NewType("SpanRow", int)
ThreadRow = NewType("ThreadRow", int)
ProcessRow = NewType("ProcessRow", int)
StackRow = NewType("StackRow", int)
FrameRow = NewType("FrameRow", int)
ModuleRow = NewType("ModuleRow", int)
ShapesRow = NewType("ShapesRow", int)
StepRow = NewType("StepRow", int)
AllocationRow = NewType("AllocationRow", int)
StringRow = NewType("StringRow", int)
