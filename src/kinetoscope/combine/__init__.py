"""Many traces as one, and one trace as a part of it."""
