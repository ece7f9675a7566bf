"""Judgements about a trace: sentences with their numbers and evidence, computed from its tables."""
