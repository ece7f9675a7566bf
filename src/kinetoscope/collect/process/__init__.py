"""Facts of this process that all rooms need: its ranks, clocks, devices and active sessions, and warnings to its user."""
