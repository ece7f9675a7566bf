"""The native recorder in Python: how it is built, loaded, checked, and shared by the sessions of this process."""
