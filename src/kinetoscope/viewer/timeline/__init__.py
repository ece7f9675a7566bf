"""The timeline: tracks, rows, windows and what is known of each span."""
