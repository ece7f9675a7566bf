"""JSON read without Python's own extensions of it."""

import json
from typing import Any


def read_strictly(text: str) -> Any:
    """Parses JSON without Python's own extensions of it."""

    def refuse(word: str) -> object:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse, strict=True)


def paired(text: str) -> str:
    """What JSON makes of the text: two escaped halves of a pair become one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
