"""What programs read from a session itself."""

import torch
import torch.profiler as P

prof = P.profile(
    activities=[P.ProfilerActivity.CPU],
    record_shapes=True,
    with_stack=False,
    profile_memory=True,
    with_modules=False,
)
print(
    prof.record_shapes,
    prof.with_stack,
    prof.profile_memory,
    prof.with_flops,
    prof.with_modules,
    prof.step_num,
)
print(prof.activities, prof.current_action, prof.on_trace_ready, prof.profiler)
with prof:
    torch.ones(1)
print(prof.profiler is not None)
