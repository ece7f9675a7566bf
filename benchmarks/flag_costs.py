"""The overhead of each option on its own, in both profilers. For Python and module calls see `python_calls`."""

from argparse import Namespace
from collections.abc import Mapping

from benchmarks.harness import Result, added, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting, tiny_training_step

_Flags = Mapping[str, bool | int]
# Name in the table -> (our keywords, torch's keywords).
FLAGS: dict[str, tuple[_Flags, _Flags]] = {
    "record_shapes": ({"record_shapes": True}, {"record_shapes": True}),
    "profile_memory": ({"profile_memory": True}, {"profile_memory": True}),
    "with_stack": ({"with_stack": True}, {"with_stack": True}),
    "with_flops": ({"with_flops": True}, {"with_flops": True}),
    "with_modules": ({"with_modules": True}, {"with_modules": True}),
    # torch has no such option; both record shapes.
    "tensor_versions": ({"tensor_versions": True}, {"record_shapes": True}),
}
LIMIT = 0.5


def measure(options: Namespace) -> list[Result]:
    """Measure each option; a note has the difference to a session with default flags."""
    step = tiny_training_step()
    for _ in range(20):
        step()
    results = []
    for name, (ours, theirs) in FLAGS.items():
        contenders = {
            "kinetoscope": lambda ours=ours: collecting(theirs=False, **ours),
            "kinetoscope, default flags": lambda: collecting(theirs=False),
            "torch.profiler": lambda theirs=theirs: collecting(theirs=True, **theirs),
        }
        times = interleave(step, contenders, *((1, 2) if options.quick else (10, 10)))
        result = ratio_result(name, LIMIT, times, "kinetoscope", "torch.profiler")
        more = added(times, "kinetoscope", "cpu", "median") - added(
            times, "kinetoscope, default flags", "cpu", "median"
        )
        result.notes += [f"{more / 1e6:+.3f} ms more than default flags", *report_added(times)]
        results.append(result)
    return results


if __name__ == "__main__":
    run(measure)
