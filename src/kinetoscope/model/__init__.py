"""What a trace is made of: its schema, columns, strings, processes and losses."""
