"""Small real programs that both profilers record in the differential tests. Each is built once and run many times."""

from tests.support.programs import (  # imported for the programs that they list
    basics,
    compiled,
    concurrency,
    convolutions,
    differentiation,
    extensions,
    numerics,
    optimizers,
    sequences,
    transforms,
)
from tests.support.programs.catalog import PROGRAMS, SLOW_PROGRAMS, Program, training_step
from tests.support.programs.models import Attention, Transformer

__all__ = [
    "PROGRAMS",
    "SLOW_PROGRAMS",
    "Attention",
    "Program",
    "Transformer",
    "basics",
    "compiled",
    "concurrency",
    "convolutions",
    "differentiation",
    "extensions",
    "numerics",
    "optimizers",
    "sequences",
    "training_step",
    "transforms",
]
