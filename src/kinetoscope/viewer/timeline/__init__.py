"""The timeline: tracks, rows, windows and the details of spans."""
