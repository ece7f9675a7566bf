"""Tables of what ran on devices."""
