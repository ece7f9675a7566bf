"""Engines: what records, native, Kineto and the two joined, and which of them fits this machine."""
