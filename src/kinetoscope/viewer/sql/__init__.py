"""SQL on the page."""
