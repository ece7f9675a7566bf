"""Work that a program could leave out, or do in a cheaper way: what operators repeat, discard, overwrite or compute in an expensive order."""

__all__ = ["padding", "repeats", "waste"]
