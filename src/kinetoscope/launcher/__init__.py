"""A program under the recorder, with the processes that it starts."""
