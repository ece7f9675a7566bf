"""The ranges that torch's own loaders and optimizers write."""

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

data = torch.utils.data.TensorDataset(torch.ones(4, 8))
with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=2):
        model(batch)
    train_step()
print([(event.key, event.count) for event in prof.key_averages() if event.is_user_annotation])
