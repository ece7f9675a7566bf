"""Where the time of an inference goes."""

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
inputs = torch.ones(4, 8)

with (
    P.profile(activities=[P.ProfilerActivity.CPU], record_shapes=True) as prof,
    P.record_function("inference"),
):
    model(inputs)
averages = prof.key_averages()
print(sorted((event.key, event.count) for event in averages))
total = sum(event.self_cpu_time_total for event in averages)
print(abs(total - averages.self_cpu_time_total) < 0.5)
by_shape = prof.key_averages(group_by_input_shape=True)
print(sorted((event.key, event.count, str(event.input_shapes)) for event in by_shape))
(whole,) = [event for event in averages if event.key == "inference"]
print(whole.cpu_time_total > whole.self_cpu_time_total > 0, whole.is_user_annotation)
