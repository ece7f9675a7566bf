"""The timeline: tracks, rows, windows and details of spans."""
