"""Tests that measure: marks and limits of time, memory and operators for pytest."""
