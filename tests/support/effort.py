"""How hard tests try: a quick run by default, the long one of `make stress` where `KINETOSCOPE_STRESS` is set."""

import os

STRESS = os.environ.get("KINETOSCOPE_STRESS", "") not in ("", "0")


def times(quick: int, stress: int) -> int:
    """Returns how often a test repeats what it tries."""
    return stress if STRESS else quick
