"""The responses for each page of the viewer."""
