"""Many traces of one job as one: which clock showed what when, and how surely."""

from kinetoscope.ranks._merge import merge

__all__ = ["merge"]
