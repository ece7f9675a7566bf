"""Programs that compute with the attributes of events."""

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

with P.profile(activities=[P.ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as prof:
    train_step()
events = prof.events()
for event in events:
    span = event.time_range
    assert span.end >= span.start, event
    assert abs(span.elapsed_us() - event.cpu_time_total) < 1e-3, event
    assert event.self_cpu_time_total <= event.cpu_time_total + 1e-3, event
    assert event.cpu_time == event.cpu_time_total, event
    if event.cpu_parent is not None:
        assert event.cpu_parent.time_range.start <= span.start, event
    assert event in (event.cpu_parent.cpu_children if event.cpu_parent else [event])
print(len(events))
fields = [
    "name",
    "key",
    "count",
    "scope",
    "is_async",
    "is_remote",
    "is_legacy",
    "node_id",
    "device_index",
    "use_device",
    "flops",
    "kernels",
]
for event in events[:12]:
    print(
        [getattr(event, field) for field in fields],
        event.device_type,
        event.input_shapes,
        event.sequence_nr >= 0,
    )
print({event.thread for event in events} == {events[0].thread})
links = [event for event in events if event.scope == 1]
forward = {
    event.sequence_nr: event.name for event in events if event.scope == 0 and "engine" not in event.name
}
print([(event.name, forward.get(event.sequence_nr), event.fwd_thread == events[0].thread) for event in links])
print([event.concrete_inputs for event in events if event.name == "aten::t"][:1])
