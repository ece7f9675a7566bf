"""Recorded scalar arguments as Python values."""

from __future__ import annotations

from typing import Any

SCALARS = ("Scalar", "ScalarList")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


def python_values(texts: list[Any], types: list[Any]) -> list[Any]:
    """Return the inputs of a call as torch's `concrete_inputs` has them.

    Args:
        texts: What was recorded of each input: the text of a scalar or of a list of scalars, empty for a tensor.
        types: The type of each input; only inputs of type `Scalar` and `ScalarList` are numbers.

    Returns:
        For each input its number, truth value or list of these, or None without. A text that is no number stays
        as it is: strings and devices, which torch leaves out.
    """
    known = [*types, *[""] * (len(texts) - len(types))]
    return [_value(text, kind in SCALARS) for text, kind in zip(texts, known, strict=False)]


def _value(text: Any, is_scalar: bool) -> Any:
    """Read one input."""
    if not isinstance(text, str):
        return text
    if not text:
        return None
    if not is_scalar:
        return text
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(part.strip()) for part in inner.split(",")] if inner else []
    return _scalar(text)


def _scalar(text: str) -> Any:
    """Read one number or truth value."""
    if text in _WORDS:
        return _WORDS[text]
    for read in (int, float, complex):
        try:
            return read(text)
        except ValueError:
            continue
    return text
