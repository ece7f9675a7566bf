"""The page Modules: the table of modules, and what ran in each."""

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("table/modules", {}), ("table/module_operators", {}))
"""What a report includes."""
