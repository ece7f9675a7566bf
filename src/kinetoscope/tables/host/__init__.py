"""Tables of what ran on the host."""
