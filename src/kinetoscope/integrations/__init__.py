"""Integrations with trainers, frameworks and tools. Nothing here is imported unless it is used."""

__all__ = ["agents"]
