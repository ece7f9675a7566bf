"""Tables of what ran on devices."""

__all__ = ["collectives", "copies", "kernels", "launches", "streams", "work"]
