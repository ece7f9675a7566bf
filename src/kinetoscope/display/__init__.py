"""How times, bytes, tables and traces are printed, in a terminal and in a notebook."""
