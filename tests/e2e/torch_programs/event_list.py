"""Lists of events, sliced, counted, added up and grouped again."""

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.ones(4, 8)


def train_step():
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()


train_step()

with P.profile(activities=[P.ProfilerActivity.CPU], record_shapes=True) as prof:
    train_step()
    train_step()
events = prof.events()
print(len(events), len(events[:5]), events[0].name, events[-1].name, type(events).__name__)
print(len(list(reversed(events))), events[3] in events)
averages = events.key_averages()
print(sum(event.count for event in averages), type(averages).__name__)
print(events.total_average().key, events.total_average().count == len(events))
total = averages.total_average()
print(total.key, total.count, total.cpu_time_total >= total.self_cpu_time_total)
slowest = sorted(averages, key=lambda event: event.self_cpu_time_total, reverse=True)[:3]
print(len(slowest), slowest[0].self_cpu_time_total >= slowest[1].self_cpu_time_total)
print({event.key: event.count for event in averages if event.count > 4})
print(sorted(events.supported_export_stacks_metrics()))
print(prof.key_averages(group_by_input_shape=True)[0].key)
