"""This process: its rank, clocks, devices and active sessions, and warnings to its user."""
