"""How sure a difference between two series of steps is.

The steps of a run are correlated, drift, and some of them are slowed down by whatever else the machine does. So:

- A side is described by the mean of its fastest steps. Which fraction of them is decided by the data: the largest one that is nearly
  as precise as the best one. C. Léger and J. P. Romano, "Bootstrap adaptive estimation: the trimmed-mean example", Canadian Journal
  of Statistics 18 (1990). The fraction is taken of each class of steps (those of one kind with equal numbers of operators), so that a program
  whose steps differ by design keeps all its kinds of steps.
- Where other programs interrupt nearly every step, no step is a clean one; but most steps run any single module or line without an interruption.
  A row of several recordings may therefore be described by the fastest steps of its own in each recording, if that is more precise. Where steps are
  resampled, the mean of these comes from its influence function, as for any trimmed mean: P. J. Huber, Robust Statistics (1981), section 3.3.
- Steps are resampled in blocks of random length: D. N. Politis and J. P. Romano, "The stationary bootstrap", Journal of the American
  Statistical Association 89 (1994). Of several recordings a side, recordings are resampled: C. A. Field and A. H. Welsh,
  "Bootstrapping clustered data", Journal of the Royal Statistical Society B 69 (2007); of only a few, the blocks of steps in them, too.
- Recordings that took turns are resampled in pairs, which share the state of the machine.
- The bootstrap gives a standard error. Intervals and p-values come from Student's t with as many degrees of freedom as there are
  recordings (B. L. Welch, Biometrika 34, 1947), because few repetitions know their own spread badly.
- One recording of a side does not show how much recordings of one program differ: its steps ran in one process, with the same memory, the same
  processors and the same neighbors, so they are no independent samples of the program. Then the error is infinite, and there is no verdict on times.
- A step is compared as a ratio, of which the logarithm is resampled: no step can become more than 100 % faster.
- Of many rows, false alarms are limited as Y. Benjamini and Y. Hochberg do, Journal of the Royal Statistical Society B 57 (1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.rows import Mask, Rows, mask_of

Numbers = NDArray[np.float64]

FRACTIONS = (1.0, 0.75, 0.5, 0.25, 0.1, 0.05)
"""Of each class of steps, this part of them may be used, the fastest."""
LEAST_STEPS = 10
"""A fraction has at least as many steps, unless there are fewer."""
FEW_RECORDINGS = 8
"""Of fewer recordings, blocks of steps are resampled, too: recordings alone would show too little of the spread."""
REPLICATES = 400
_NEARLY = 1.25
MOST_CLASSES = 8
"""Where steps are of more classes, hardly two are alike, and all of them count."""
_MOST_FREEDOM = 200.0


@dataclass(frozen=True, eq=False)
class Series:
    """The steps of one side that count, one recording after the other.

    Attributes:
        step_ns: How long each took.
        recording: Which recording it is of, from 0.
        kind: Its class: steps that are alike by design have the same number.
        share: The weight of each class by its number, together 1; None for that which its steps have.
    """

    step_ns: Numbers
    recording: Rows
    kind: Rows
    share: Numbers | None = None

    @classmethod
    def of(cls, steps: Sequence[Numbers], kind: Rows, share: Numbers | None = None) -> Series:
        """The steps of some recordings, with the class of each."""
        recording = np.repeat(np.arange(len(steps)), list(map(len, steps)))
        return cls(np.concatenate(steps), recording, kind, share)

    @property
    def recordings(self) -> int:
        """How many recordings there are."""
        return int(self.recording.max(initial=-1)) + 1

    @cached_property
    def classes(self) -> list[Rows]:
        """The steps of each class, the fastest first; all are one class where hardly two are alike."""
        members = [np.flatnonzero(self._class == kind) for kind in np.unique(self._class)]
        return [rows[np.argsort(self.step_ns[rows], kind="stable")] for rows in members]

    @cached_property
    def alike(self) -> bool:
        """Whether steps are alike, so that those that took longer were slowed down by something else."""
        return len(np.unique(self.kind)) <= MOST_CLASSES

    @property
    def _class(self) -> Rows:
        return self.kind if self.alike else np.zeros_like(self.kind)

    def of_fastest(self, values: Numbers, fraction: float) -> Numbers:
        """Values whose mean over all steps is, for each column, the mean of its smallest ones in each class of steps of each recording.

        Above the cutoff all values count alike. Resampled means of these values therefore vary as those of the smallest ones do. The
        cutoff is that of a recording, so that no few recordings, in which something else was different, are all that counts.
        """
        smallest = np.empty_like(values)
        order = np.lexsort((self._class, self.recording))
        begins = np.flatnonzero(np.diff(self._class[order]) | np.diff(self.recording[order])) + 1
        for rows in np.split(order, begins):
            cutoff_rank = max(int(np.ceil(fraction * len(rows))) - 1, 0)
            class_values = values[rows]
            cutoff = np.partition(class_values, cutoff_rank, axis=0)[cutoff_rank]
            smallest[rows] = (np.minimum(class_values, cutoff) - (1 - fraction) * cutoff) / fraction
        return smallest

    def weights(self, copies: Numbers, fraction: float) -> Numbers:
        """The weight of each step in the mean of the fastest ones, in each replicate; the weights of a replicate add up to 1.

        Args:
            copies: How often each replicate (row) has each step (column).
            fraction: Which part of each class of steps to use.
        """
        weights = np.zeros(copies.shape)
        step_copies = copies.sum(axis=1, keepdims=True)
        for number, rows in enumerate(self.classes):
            class_copies = copies[:, rows]
            reached = np.cumsum(class_copies, axis=1)
            total = reached[:, -1:]
            used = np.clip(fraction * total - (reached - class_copies), 0.0, class_copies)
            share = total / step_copies if self.share is None else self.share[number]
            weights[:, rows] = used * (share / np.maximum(used.sum(axis=1, keepdims=True), 1e-300))
        # A replicate may have no step of a class.
        return weights if self.share is None else weights / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True, eq=False)
class Estimate:
    """How much some rows differ between two sides.

    Attributes:
        base: The value of each row in the base.
        new: The value in the other side.
        error: The standard error of the difference; infinite where a side has one recording.
        freedom: Its degrees of freedom.
    """

    base: Numbers
    new: Numbers
    error: Numbers
    freedom: Numbers

    @property
    def change(self) -> Numbers:
        """The difference: above 0 where the new side takes longer."""
        return self.new - self.base

    @cached_property
    def p(self) -> Numbers:
        """How probable so large a difference is where there is none; not a number where the error is not known."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.error > 0, np.abs(self.change) / self.error, 0.0)
        return np.where(np.isfinite(self.error), two_sided_p(t, self.freedom), np.nan)

    def half_width(self, confidence: float) -> Numbers:
        """Half the width of the confidence interval of the difference; infinite where the error is."""
        return self.error * quantile(1.0 - confidence, self.freedom)


class Bootstrap:
    """Two sides, resampled the same way for every row."""

    def __init__(self, base: Series, new: Series, *, in_turn: bool = False, seed: int = 0) -> None:
        """Resample.

        Args:
            base: The steps of one side.
            new: The steps of the other.
            in_turn: Whether recording i of one side was made next to recording i of the other.
            seed: Of the random numbers: the same input has the same result.
        """
        self.base, self.new = self._sides = (base, new)
        self.in_turn = in_turn and base.recordings == new.recordings > 1
        random = np.random.default_rng(seed)
        drawn = _drawn(random, base.recordings)
        of_new = drawn if self.in_turn else _drawn(random, new.recordings)
        # The first row is what was recorded, each other one a replicate.
        self._copies = [_copies(random, base, drawn), _copies(random, new, of_new)]
        self.fraction = self._best_fraction()
        self._weights = self._weights_of(self.fraction)

    @property
    def own_weights(self) -> tuple[Numbers, Numbers]:
        """The weight of each step of each side, as recorded."""
        return self._weights[0][0], self._weights[1][0]

    @property
    def _fractions(self) -> list[float]:
        """Those of which enough steps are left."""
        fewest = min(len(side.step_ns) for side in self._sides)
        return [fraction for fraction in FRACTIONS if fraction == 1.0 or fraction * fewest >= LEAST_STEPS]

    def _weights_of(self, fraction: float) -> list[Numbers]:
        return [
            side.weights(copies, fraction) for side, copies in zip(self._sides, self._copies, strict=True)
        ]

    def _best_fraction(self) -> float:
        if not (self.base.alike and self.new.alike):
            return 1.0
        errors: dict[float, float] = {}
        for fraction in self._fractions:
            means = self._step_means(self._weights_of(fraction))
            # In time, not relative to a step: what other programs add makes steps longer, and a relative error smaller.
            errors[fraction] = float(np.std((means[1] - means[0])[1:]))
        best = min(errors.values())
        return max(fraction for fraction, error in errors.items() if error <= _NEARLY * best)

    def _step_means(self, weights: list[Numbers]) -> list[Numbers]:
        return [of_side @ side.step_ns for side, of_side in zip(self._sides, weights, strict=True)]

    def estimate(self, base: Numbers, new: Numbers) -> Estimate:
        """Compare rows by the fastest steps: a row for each step of a side, a column for each row of the comparison."""
        return self._estimate(self._weights[0] @ base, self._weights[1] @ new)

    def estimate_step(self) -> Estimate:
        """Compare the logarithms of the time of a step, so that the change is that of a ratio."""
        means = self._step_means(self._weights)
        return self._estimate(*(np.log(np.maximum(mean, 1.0))[:, None] for mean in means))

    def estimate_rows(self, base: Numbers, new: Numbers) -> Estimate:
        """The same, but each row by the fastest steps of its own where that is more precise."""
        estimates = [self.estimate(base, new)]
        if min(side.recordings for side in self._sides) > 1 and self.base.alike and self.new.alike:
            copies = [copies / copies.sum(axis=1, keepdims=True) for copies in self._copies]
            for fraction in self._fractions:
                values = [
                    side.of_fastest(times_ns, fraction)
                    for side, times_ns in zip(self._sides, (base, new), strict=True)
                ]
                means = (weights @ side_values for weights, side_values in zip(copies, values, strict=True))
                estimates.append(self._estimate(*means))
        errors = np.stack([estimate.error for estimate in estimates])
        # The first one that is nearly as precise as the best: the steps of all rows, then more steps rather than fewer.
        chosen = np.argmax(errors <= _NEARLY * errors.min(axis=0), axis=0)
        # The fastest steps of what does not run in every step would be those without it.
        for times_ns in (base, new):
            chosen[~((times_ns > 0).all(axis=0) | (times_ns == 0).all(axis=0))] = 0
        columns = np.arange(base.shape[1])
        return Estimate(
            *(
                np.stack([getattr(estimate, name) for estimate in estimates])[chosen, columns]
                for name in ("base", "new", "error", "freedom")
            )
        )

    def _estimate(self, base: Numbers, new: Numbers) -> Estimate:
        """The estimate from the means of both sides: as recorded, and of each replicate."""
        usual, replicates = (base[0], new[0]), (base[1:], new[1:])
        columns = len(base[0])
        if self.in_turn:
            freedom = np.full(columns, self.base.recordings - 1.0)
            # A sample of n has a standard deviation that is too small by this.
            error = np.std(replicates[1] - replicates[0], axis=0) * np.sqrt(self.base.recordings / freedom)
            return Estimate(*usual, np.asarray(error), freedom)
        counts = [side.recordings for side in self._sides]
        if min(counts) < 2:
            return Estimate(*usual, np.full(columns, np.inf), np.ones(columns))
        variances = [
            np.var(means, axis=0) * count / (count - 1)
            for means, count in zip(replicates, counts, strict=True)
        ]
        total = variances[0] + variances[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = sum(variance**2 / (count - 1) for variance, count in zip(variances, counts, strict=True))
            freedom = np.where(parts > 0, total**2 / parts, 1.0)
        return Estimate(*usual, np.sqrt(total), np.clip(freedom, 1.0, _MOST_FREEDOM))


def _drawn(random: np.random.Generator, recordings: int) -> Numbers:
    evenly = np.full(recordings, 1 / recordings)
    return np.asarray(random.multinomial(recordings, evenly, size=REPLICATES), float)


def _copies(random: np.random.Generator, side: Series, drawn: Numbers) -> Numbers:
    """How often each replicate has each step, behind a first row of what was recorded."""
    copies = drawn[:, side.recording]
    for recording in range(side.recordings if side.recordings < FEW_RECORDINGS else 0):
        rows = np.flatnonzero(side.recording == recording)
        # As the error of the variance wants.
        length = max(1.0, 1.5 * float(np.cbrt(len(rows))))
        copies[:, rows] *= stationary_counts(random, len(rows), length, len(drawn))
    return np.insert(copies, 0, 1.0, axis=0)


def stationary_counts(random: np.random.Generator, steps: int, length: float, replicates: int) -> Numbers:
    """How often each replicate of the stationary bootstrap has each step: blocks of random length, from one end on at the other."""
    begins = random.random((replicates, steps)) < 1.0 / length
    begins[:, 0] = True
    start = random.integers(0, steps, (replicates, steps))
    step = np.arange(steps)
    since = np.maximum.accumulate(np.where(begins, step, 0), axis=1)
    chosen = (np.take_along_axis(start, since, axis=1) + step - since) % steps
    cells = chosen + steps * np.arange(replicates)[:, None]
    return np.bincount(cells.ravel(), minlength=replicates * steps).reshape(replicates, steps).astype(float)


def two_sided_p(t: Numbers, freedom: Numbers) -> Numbers:
    """The probability that the absolute value of Student's t is at least `t`."""
    # With t = sqrt(freedom) * tan(angle), the density is a power of the cosine.
    angle = np.arctan(np.asarray(t, float) / np.sqrt(freedom))
    # Exact for polynomials up to degree 191.
    points, weights = _gauss(96)

    def area(begin: Numbers) -> Numbers:
        half = (np.pi / 2 - begin) / 2
        cosines_at = begin[..., None] + half[..., None] * (points + 1)
        powers = np.cos(cosines_at) ** (np.asarray(freedom)[..., None] - 1)
        return np.asarray((powers * weights).sum(axis=-1) * half)

    share: Numbers = area(angle) / area(np.zeros_like(angle))
    return share


# The points and weights of an integral.
_gauss = cache(np.polynomial.legendre.leggauss)


def quantile(p: float, freedom: Numbers) -> Numbers:
    """The t that is exceeded in absolute value with probability `p`."""
    low, high = np.zeros_like(freedom), np.full_like(freedom, 1.0)
    while (beyond := two_sided_p(high, freedom) > p).any():
        high = np.where(beyond, 2 * high, high)
    for _ in range(50):
        middle = (low + high) / 2
        above = two_sided_p(middle, freedom) > p
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray((low + high) / 2)


def discoveries(p: Sequence[float] | Numbers, rate: float) -> Mask:
    """Which of many differences are real, such that of those at most a share of `rate` is expected to be false."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    passing = np.flatnonzero(values[order] <= rate * np.arange(1, len(values) + 1) / max(1, len(values)))
    return mask_of(order[: passing[-1] + 1 if len(passing) else 0], len(values))
