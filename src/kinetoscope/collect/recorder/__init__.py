"""The Python side of the native recorder: it is compiled, loaded, tested, and shared by the sessions of this process."""
