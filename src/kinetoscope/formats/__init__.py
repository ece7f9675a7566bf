"""Formats of other tools, one module or package each."""
