"""A profiler that a callback starts and stops, as trainers do it."""

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


class ProfilerCallback:
    def __init__(self, **options):
        self.prof = P.profile(**options)

    def on_train_begin(self):
        self.prof.start()

    def on_step_end(self):
        self.prof.step()

    def on_train_end(self):
        self.prof.stop()


traces = []
callback = ProfilerCallback(
    activities=[P.ProfilerActivity.CPU],
    schedule=P.schedule(wait=1, warmup=1, active=1, repeat=1),
    on_trace_ready=lambda prof: traces.append(sum(event.count for event in prof.key_averages())),
)
callback.on_train_begin()
for _ in range(5):
    train_step()
    callback.on_step_end()
callback.on_train_end()
print(len(traces), callback.prof.step_num, callback.prof.current_action)
print(traces)
