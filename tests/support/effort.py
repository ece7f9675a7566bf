"""How hard tests try: a quick run by default, the long one of `make stress` where `KINETOSCOPE_STRESS` is set."""

import os

STRESS = os.environ.get("KINETOSCOPE_STRESS", "") not in ("", "0")


def times(quick: int, stress: int) -> int:
    """Returns how often a test repeats what it tries."""
    return stress if STRESS else quick


def examples(quick: int) -> int:
    """Returns how many examples a property is tried with: a fifth as many, or in `make stress` 40 times as many."""
    return times((quick + 4) // 5, 40 * quick)
