"""What each page of the viewer shows."""
