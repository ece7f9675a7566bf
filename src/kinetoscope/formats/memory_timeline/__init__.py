"""Memory over time as files and as a page."""
