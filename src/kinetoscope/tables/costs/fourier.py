"""Fourier transforms: 5 N log2 N for N complex numbers, half of it where input or output is real.

That is the usual convention (http://www.fftw.org/speed/method.html); N is the product of the transformed sizes.
"""

from __future__ import annotations

from math import log2, prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall

_COMPLEX = {"float32": "complex64", "float64": "complex128", "float16": "complex32"}
_REAL = {of: name for name, of in _COMPLEX.items()}


def transform(size: int, times: int, *, real: bool) -> int:
    """Operations of `times` transforms of `size` numbers, rounded to a whole number."""
    return round((2.5 if real else 5.0) * times * size * log2(size)) if size > 1 else 0


def _dims(call: OperatorCall) -> list[int]:
    """The transformed dimensions."""
    shape, dims = call.shape(0), call.value(1)
    return [int(dim) % len(shape) for dim in (dims if isinstance(dims, list) else [dims])]


def complex_to_complex(call: OperatorCall) -> Cost:
    """`_fft_c2c(self, dim, normalization, forward)`."""
    shape = call.shape(0)
    size = prod(shape[dim] for dim in _dims(call))
    times = call.numel(0) // size if size else 0
    return Cost(transform(size, times, real=False), moved(call, (0,), call.numel(0), 0))


def real_to_complex(call: OperatorCall) -> Cost:
    """`_fft_r2c(self, dim, normalization, one side)`."""
    shape, dims = call.shape(0), _dims(call)
    size = prod(shape[dim] for dim in dims)
    times = call.numel(0) // size if size else 0
    last = shape[dims[-1]]
    one_side = bool(call.value(3, True)) and last > 0
    out = call.numel(0) // last * (last // 2 + 1) if one_side else call.numel(0)
    return Cost(
        transform(size, times, real=True), moved(call, (0,), out, 0, dtype=_COMPLEX.get(call.dtypes[0] or ""))
    )


def complex_to_real(call: OperatorCall) -> Cost:
    """`_fft_c2r(self, dim, normalization, size of the last dimension)`."""
    shape, dims = list(call.shape(0)), _dims(call)
    shape[dims[-1]] = int(call.value(3))
    size = prod(shape[dim] for dim in dims)
    times = prod(shape) // size if size else 0
    real = _REAL.get(call.dtypes[0] or "")
    return Cost(transform(size, times, real=True), moved(call, (0,), prod(shape), 0, dtype=real))


RULES: dict[str, Rule] = rules(
    "fourier", {complex_to_complex: "_fft_c2c", real_to_complex: "_fft_r2c", complex_to_real: "_fft_c2r"}
)
