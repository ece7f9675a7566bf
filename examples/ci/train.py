"""A short, deterministic training run for a build: the same steps each time, on one thread."""

import torch
from torch import nn

STEPS = 12


def main() -> None:
    """Train a few steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, labels = torch.randn(32, 64), torch.randint(0, 8, (32,))
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
