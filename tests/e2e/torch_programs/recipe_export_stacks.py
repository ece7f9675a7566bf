"""Files for flame graphs."""

import torch
import torch.profiler as P

# Without this torch keeps stacks of its own events out of its lists.
VERBOSE = torch._C._profiler._ExperimentalConfig(verbose=True)


def leaf():
    return torch.ones(300, 300) @ torch.ones(300, 300)


def branch():
    return leaf()


with P.profile(activities=[P.ProfilerActivity.CPU], with_stack=True, experimental_config=VERBOSE) as prof:
    for _ in range(20):
        branch()
prof.export_stacks("stacks.txt", "self_cpu_time_total")
with open("stacks.txt") as lines:
    rows = [line.rstrip("\n").rpartition(" ") for line in lines]
print(len(rows) > 0, all(int(weight) >= 0 for _, _, weight in rows))
print(any("branch" in frames and "leaf" in frames for frames, _, _ in rows))
try:
    prof.export_stacks("stacks.txt", "wall_time")
except Exception as error:
    print(isinstance(error, (ValueError, AssertionError)))
