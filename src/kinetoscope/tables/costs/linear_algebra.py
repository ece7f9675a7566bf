"""Decompositions and solvers: the leading terms of the usual algorithms, 4 times as many for complex matrices.

Sources: LAPACK Working Note 41, appendix C (Cholesky n^3/3, LU m n^2 - n^3/3, QR 2 m n^2 - 2 n^3/3, inverse 2 n^3, triangular and general
solves), and Golub and Van Loan, Matrix Computations (fourth edition): symmetric eigenvalues 4 n^3/3 and with vectors 9 n^3 (8.3),
eigenvalues 10 n^3 and with vectors 25 n^3 (7.5), singular values 4 m n^2 - 4 n^3/3 and with vectors 4 m^2 n + 22 n^3, or 6 m n^2 + 20 n^3 for
the thin form (8.6). m is the longer side.
"""

from __future__ import annotations

from math import log2, prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, moved, rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.tables.costs.call import Formula, OperatorCall


def _batch(call: OperatorCall, argument: int) -> tuple[int, int, int]:
    """How many matrices there are, and their longer and shorter side."""
    shape = call.shape(argument)
    return prod(shape[:-2]), max(shape[-2:]), min(shape[-2:])


def _factor(call: OperatorCall, flops: float, times: int, argument: int) -> int:
    """The operations of `times` matrices, as a whole number."""
    return round(flops * times) * (4 if call.is_complex(argument) else 1)


def _of_matrix(flops: Callable[[int, int], float], argument: int = 0, results: int = 1) -> Formula:
    """The formula of an operator on matrices of m by n, m >= n, whose results have their size."""

    def formula(call: OperatorCall) -> Cost:
        times, longer, shorter = _batch(call, argument)
        size = moved(call, (argument,), results * call.numel(argument), argument)
        return Cost(_factor(call, flops(longer, shorter), times, argument), size)

    return formula


def _of_system(flops: Callable[[int, int], float], matrix: int, right: int) -> Formula:
    """The formula of a solver, of the size n of the matrix and the number k of right sides."""

    def formula(call: OperatorCall) -> Cost:
        times, size, _ = _batch(call, matrix)
        shape = call.shape(right)
        # One right side of n numbers for each matrix, or k of them.
        sides = 1 if len(shape) == len(call.shape(matrix)) - 1 or len(shape) < 2 else shape[-1]
        if len(shape) >= 2:
            times = max(times, prod(shape[:-2]))
        return Cost(
            _factor(call, flops(size, sides), times, matrix),
            moved(call, (matrix, right), call.numel(right), right),
        )

    return formula


def qr(call: OperatorCall) -> Cost:
    """`linalg_qr(self, mode)`: the factors, and for all but mode `r` the first columns of Q, which cost as much again."""
    times, longer, shorter = _batch(call, 0)
    flops = 2 * longer * shorter**2 - 2 * shorter**3 / 3
    again = 1 if call.value(1, "reduced") == "r" else 2
    return Cost(
        _factor(call, again * flops, times, 0), moved(call, (0,), times * shorter * (longer + shorter), 0)
    )


def svd(call: OperatorCall) -> Cost:
    """`_linalg_svd(self, full matrices, compute them, ...)`."""
    times, longer, shorter = _batch(call, 0)
    if call.value(2, True) is False:
        flops: float = 4 * longer * shorter**2 - 4 * shorter**3 / 3
    elif call.value(1, False):
        flops = 4 * longer**2 * shorter + 22 * shorter**3
    else:
        flops = 6 * longer * shorter**2 + 20 * shorter**3
    return Cost(
        _factor(call, flops, times, 0), moved(call, (0,), times * shorter * (longer + shorter + 1), 0)
    )


def symmetric_eigen(call: OperatorCall) -> Cost:
    """`_linalg_eigh(self, which half, vectors)`."""
    times, size, _ = _batch(call, 0)
    flops = 4 * size**3 / 3 if call.value(2, True) is False else 9 * size**3
    return Cost(_factor(call, flops, times, 0), moved(call, (0,), times * size * (size + 1), 0))


def least_squares(call: OperatorCall) -> Cost:
    """`linalg_lstsq(self, right, ...)`: a QR decomposition, applied to each right side."""
    times, longer, shorter = _batch(call, 0)
    right = call.shape(1)
    sides = right[-1] if len(right) == len(call.shape(0)) else 1
    flops = 2 * longer * shorter**2 - 2 * shorter**3 / 3 + sides * (4 * longer * shorter - shorter**2)
    return Cost(_factor(call, flops, times, 0), moved(call, (0, 1), times * shorter * sides, 0))


def apply_q(call: OperatorCall) -> Cost:
    """`ormqr(self, tau, other, left, ...)`: 4 m n k - 2 n k^2 for k reflections of an m by n matrix."""
    times, _, _ = _batch(call, 2)
    rows, columns = call.shape(2)[-2:]
    if call.value(3, True) is False:
        rows, columns = columns, rows
    count = call.shape(1)[-1]
    flops = 4 * rows * columns * count - 2 * columns * count**2
    return Cost(_factor(call, flops, times, 0), moved(call, (0, 1, 2), call.numel(2), 2))


def cross(call: OperatorCall) -> Cost:
    """`linalg_cross(self, other, dim)`: two products and a difference for each number."""
    count = max(call.numel(0), call.numel(1))
    return Cost((14 if call.is_complex(0) else 3) * count, moved(call, (0, 1), count, 0))


def _lu(longer: int, shorter: int) -> float:
    return longer * shorter**2 - shorter**3 / 3


LINEAR_ALGEBRA_RULES: dict[str, Rule] = rules(
    "linear algebra",
    {
        _of_matrix(lambda m, n: n**3 / 3): "linalg_cholesky_ex cholesky linalg_ldl_factor_ex",
        _of_matrix(lambda m, n: 2 * n**3 / 3): "cholesky_inverse",
        _of_matrix(_lu): "linalg_lu_factor_ex _linalg_slogdet _linalg_det",
        _of_matrix(_lu, results=3): "linalg_lu",
        _of_matrix(lambda m, n: 2 * n**3): "linalg_inv_ex",
        _of_matrix(lambda m, n: 2 * m * n**2 - 2 * n**3 / 3): "geqrf linalg_householder_product",
        _of_matrix(lambda m, n: 10 * n**3): "_linalg_eigvals",
        _of_matrix(lambda m, n: 25 * n**3, results=2): "linalg_eig",
        _of_system(lambda n, k: 2 * n**3 / 3 + 2 * n**2 * k, 0, 1): "_linalg_solve_ex",
        _of_system(lambda n, k: n**2 * k, 0, 1): "linalg_solve_triangular",
        _of_system(lambda n, k: n**2 * k, 1, 0): "triangular_solve",
        _of_system(lambda n, k: 2 * n**2 * k, 1, 0): "cholesky_solve _cholesky_solve_helper",
        _of_system(lambda n, k: 2 * n**2 * k, 0, 2): "linalg_lu_solve linalg_ldl_solve",
        qr: "linalg_qr",
        svd: "_linalg_svd",
        symmetric_eigen: "_linalg_eigh",
        least_squares: "linalg_lstsq",
        apply_q: "ormqr",
        cross: "linalg_cross",
    },
)


# Fourier transforms: 5 N log2 N for N complex numbers, half of it where input or output is real.
#
# That is the usual convention (http://www.fftw.org/speed/method.html); N is the product of the transformed sizes.

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


FOURIER_RULES: dict[str, Rule] = rules(
    "fourier", {complex_to_complex: "_fft_c2c", real_to_complex: "_fft_r2c", complex_to_real: "_fft_c2r"}
)
