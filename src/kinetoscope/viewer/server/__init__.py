"""The local server of the viewer."""
