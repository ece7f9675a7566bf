"""What a schedule answers for each step."""

import torch.profiler as P

for options in (
    {"wait": 1, "warmup": 1, "active": 2},
    {"wait": 0, "warmup": 1, "active": 1, "repeat": 2},
    {"wait": 2, "warmup": 1, "active": 1, "skip_first": 3},
    {"wait": 2, "warmup": 1, "active": 1, "skip_first": 1, "skip_first_wait": 1, "repeat": 2},
):
    chosen = P.schedule(**options)
    print(options, [chosen(step).name for step in range(12)])
print([(action.name, action.value) for action in P.ProfilerAction][:4])
