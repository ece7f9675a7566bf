"""Where torch.profiler and we tell different things of one run, and why. `docs/differences.md` lists the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.programs.differentiation import CubeOfCube
from tests.support.programs.distributed import DISTRIBUTED
from tests.support.torch_release import TORCH

ONE_AFTER_THE_OTHER = "one after the other"
AT_THE_SAME_TIME = "at the same time"
BOTH_WAYS = frozenset({ONE_AFTER_THE_OTHER, AT_THE_SAME_TIME})


@dataclass(frozen=True)
class Difference:
    """A difference that is known.

    Attributes:
        title: Its heading in `docs/differences.md`.
        aspects: In which aspects it is seen.
        seen_in: A program that shows it; empty for one that needs several processes.
        explains: Whether something that only one of them tells is due to it; it is given the program and the thing.
        ways: Whether it shows when the two record one after the other, or at the same time.
        since: The first release of torch in which it is seen.
    """

    title: str
    aspects: frozenset[str]
    seen_in: str
    explains: Callable[[str, Any], bool]
    ways: frozenset[str] = BOTH_WAYS
    since: tuple[int, int] = (2, 7)

    def explains_here(self, program: str, way: str, aspect: str, thing: Any) -> bool:
        """Whether something that only one of them tells of a program is due to it."""
        return way in self.ways and aspect in self.aspects and self.explains(program, thing)


def _in_program(*programs: str) -> Callable[[str, Any], bool]:
    return lambda program, thing: program in programs


def _named(*names: str) -> Callable[[str, Any], bool]:
    return lambda program, thing: thing[0] in names


OPTIMIZER_OPERATORS = ("aten::_foreach_", "aten::add", "aten::div", "aten::lerp_", "aten::fill_", "aten::mul")
ENGINE = "autograd::engine::evaluate_function: "
PYTHON_FUNCTIONS = (
    "CheckpointFunction",
    "CompiledFunction",
    "CompiledFunctionBackward",
    CubeOfCube.__name__,
    "CompiledFunction",  # of torch 2.11, whose compiler does not leave it out
    "GeneratedBackwardFor_kinetoscope_tests_scaled_default",
)

KNOWN = (
    Difference(
        "Arguments of Python autograd functions",
        frozenset({"shapes", "types", "scalars"}),
        "nested_custom_functions",
        _named(*PYTHON_FUNCTIONS),
        # Beside torch.profiler torch collects them, and we are given them too.
        ways=frozenset({ONE_AFTER_THE_OTHER}),
    ),
    Difference(
        "Shapes of tensors that wrap others",
        frozenset({"shapes", "flops"}),
        "tensor_subclass",
        _in_program("tensor_subclass", "meta_and_fake_tensors", "sharded"),
        # Seen in 2.11, not in 2.8; the releases between were not tried.
        since=(2, 9),
    ),
    Difference(
        "Types of nested tensors",
        frozenset({"types"}),
        "nested_tensors",
        _in_program("nested_tensors"),
    ),
    Difference(
        "FLOPs of complex numbers",
        frozenset({"flops"}),
        "complex_model",
        _in_program("complex_model"),
    ),
    Difference(
        "FLOPs of operators inside operators",
        frozenset({"flops"}),
        "ensemble",
        _in_program("ensemble", "per_sample_gradients"),
    ),
    Difference(
        "FLOPs of sparse products",
        frozenset({"flops"}),
        "sparse_matrices",
        _in_program("sparse_matrices", "sparse_and_scatter"),
    ),
    Difference(
        "FLOPs where nothing is computed",
        frozenset({"flops"}),
        "meta_and_fake_tensors",
        _in_program("meta_and_fake_tensors", "tensor_subclass", "sharded"),
    ),
    Difference(
        "Engine spans behind hooks",
        frozenset({"sequence", "links"}),
        "hooks",
        lambda program, thing: program in ("hooks", "sharded") and thing[0].startswith(ENGINE),
    ),
    Difference(
        "Lists of lists of tensors",
        frozenset({"types", "scalars"}),
        "",
        lambda program, thing: program == "collectives" and thing[0] == "c10d::allgather_",
    ),
    Difference(
        "Frees",
        frozenset({"blocks"}),
        "",
        # torch does not follow the threads on which a backend lets go of its buffers.
        lambda program, thing: program in DISTRIBUTED and thing[0] < 0,
        ways=frozenset({AT_THE_SAME_TIME}),
    ),
    Difference(
        "Frees",
        frozenset({"blocks"}),
        "",
        # torch's profiler and ours begin and end an operator at slightly different moments. While torch 2.8 compiles, blocks
        # are freed in between: ours belong to the operator, torch's to the range around it.
        lambda program, thing: TORCH < (2, 11) and program == "compiled_while_recorded" and thing[0] < 0,
        ways=frozenset({AT_THE_SAME_TIME}),
    ),
    Difference(
        "Shared memory",
        frozenset({"blocks"}),
        "data_loader_with_workers",
        _in_program("data_loader_with_workers"),
    ),
    Difference(
        "Frees",
        frozenset({"blocks"}),
        "function_transforms",
        lambda program, thing: thing[0] < 0,
        ways=frozenset({ONE_AFTER_THE_OTHER}),
    ),
    Difference(
        "Numbers that change from step to step",
        frozenset({"scalars"}),
        "adam_foreach",
        # An optimizer's factors are those of its step, and the two recorded different steps.
        lambda program, thing: thing[0].startswith(OPTIMIZER_OPERATORS),
        ways=frozenset({ONE_AFTER_THE_OTHER}),
    ),
    Difference(
        "Fused kernels",
        frozenset(
            {"nesting", "overloads", "shapes", "types", "scalars", "sequence", "links", "blocks", "flops"}
        ),
        "compiled_training",
        lambda program, thing: "cpp_fused_" in str(thing),
    ),
    Difference(
        "Operators that the compiler traces",
        frozenset({"types", "scalars"}),
        "compiled_while_recorded",
        _in_program("compiled_while_recorded"),
    ),
    Difference(
        "Sizes that the compiler makes dynamic",
        frozenset(
            {"nesting", "overloads", "shapes", "types", "scalars", "sequence", "links", "blocks", "flops"}
        ),
        "compiled_while_recorded",
        _in_program("compiled_while_recorded"),
        ways=frozenset({ONE_AFTER_THE_OTHER}),
    ),
)
