"""The pytest plugin: limits of time, memory and operators for tests."""
