"""Run a program under a recording, with the processes that it starts."""
