"""The local server of the viewer, and what it answers."""
