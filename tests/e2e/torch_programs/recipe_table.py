"""The printed tables."""

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
inputs = torch.ones(4, 8)

with P.profile(activities=[P.ProfilerActivity.CPU], record_shapes=True) as prof:
    model(inputs)
print(prof.key_averages().table())
print(
    prof.key_averages(group_by_input_shape=True).table(max_shapes_column_width=40, max_name_column_width=20)
)
print(
    prof.key_averages().table(
        row_limit=1, header="Only the first", time_unit="ms", top_level_events_only=True
    )
)
print(prof.key_averages().table(sort_by="count", row_limit=2).count("\n"))
