"""Collection switched off for the middle of a run."""

import torch
import torch.profiler as P

with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
    torch.ones(1).sin()
    prof.toggle_collection_dynamic(False, [P.ProfilerActivity.CPU])
    torch.ones(1).cos()
    prof.toggle_collection_dynamic(True, [P.ProfilerActivity.CPU])
    torch.ones(1).tan()
names = {event.name for event in prof.events()}
print("aten::sin" in names, "aten::cos" in names, "aten::tan" in names)
