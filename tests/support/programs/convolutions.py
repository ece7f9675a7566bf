"""Convolutional nets: residual, depthwise, transposed, in one to three dimensions, and what is built from them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.support.programs.catalog import Program, program, training_step
from tests.support.programs.models import ResidualBlock


@program
def convolutional_training() -> Program:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    x = torch.ones(2, 1, 12, 12)
    model(x)
    return training_step(model, lambda: model(x).square().mean(), foreach=True)


@program
def residual_net() -> Program:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
        ResidualBlock(4, 4),
        ResidualBlock(4, 8, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 3])
    return training_step(model, lambda: functional.cross_entropy(model(images), labels))


@program
def residual_net_channels_last() -> Program:
    model = nn.Sequential(ResidualBlock(3, 4, stride=2), ResidualBlock(4, 4)).to(
        memory_format=torch.channels_last
    )
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return training_step(model, lambda: model(images).mean())


@program
def depthwise_separable() -> Program:
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv2d(4, 8, 1),
        nn.Hardswish(),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 3, dilation=2, padding=2, padding_mode="reflect"),
        nn.SiLU(),
    )
    x = torch.randn(2, 4, 8, 8)
    return training_step(model, lambda: model(x).square().mean())


@program
def convolutions_of_one_and_three_dimensions() -> Program:
    signal = nn.Sequential(
        nn.Conv1d(2, 4, 5, padding="same"), nn.MaxPool1d(2), nn.ConvTranspose1d(4, 2, 2, 2)
    )
    volume = nn.Sequential(nn.Conv3d(1, 2, 3), nn.AvgPool3d(2), nn.ConvTranspose3d(2, 1, 2, stride=2))
    model = nn.ModuleList([signal, volume])
    x, y = torch.randn(2, 2, 16), torch.randn(1, 1, 6, 6, 6)
    return training_step(model, lambda: signal(x).sum() + volume(y).sum())


@program
def upsampling() -> Program:
    model = nn.Sequential(
        nn.ConvTranspose2d(2, 4, 4, 2, 1, groups=2),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(4, 4, 3),
        nn.PixelShuffle(2),
        nn.InstanceNorm2d(1, affine=True),
    )
    x = torch.randn(1, 2, 4, 4)
    grid = torch.rand(1, 3, 3, 2) * 2 - 1
    return training_step(
        model, lambda: functional.grid_sample(model(x), grid, align_corners=False).square().sum()
    )


class DenoisingBlock(nn.Module):
    """One level of a diffusion model's U-net: time embedding, down, attention, up, and the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        self.down = nn.Conv2d(1, 8, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(16, 1, 2, 2)

    def forward(self, x: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        angles = moment[:, None] * torch.exp(-torch.arange(4) / 4)
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        hidden = functional.silu(self.norm(self.down(x)) + embedded[:, :, None, None])
        tokens = hidden.flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.up(torch.cat([hidden, mixed.transpose(1, 2).reshape(hidden.shape)], 1))


@program
def diffusion_step() -> Program:
    model, images = DenoisingBlock(), torch.randn(2, 1, 8, 8)
    keep = torch.linspace(0.99, 0.5, 10)

    def loss() -> torch.Tensor:
        moment = torch.randint(0, 10, (2,))
        noise = torch.randn_like(images)
        share = keep[moment].view(-1, 1, 1, 1)
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        return functional.mse_loss(model(noisy, moment.float()), noise)

    return training_step(model, loss)


@program
def variational_autoencoder() -> Program:
    encoder, decoder = nn.Linear(12, 8), nn.Linear(4, 12)
    model, x = nn.ModuleList([encoder, decoder]), torch.rand(6, 12)

    def loss() -> torch.Tensor:
        mean, spread = encoder(x).chunk(2, 1)
        hidden = torch.distributions.Normal(mean, functional.softplus(spread) + 1e-3)
        prior = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
        rebuilt = torch.sigmoid(decoder(hidden.rsample()))
        return (
            functional.binary_cross_entropy(rebuilt, x)
            + torch.distributions.kl_divergence(hidden, prior).mean()
        )

    return training_step(model, loss)


@program
def adversarial_pair() -> Program:
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    first, second = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    real = torch.randn(4, 6)

    def run() -> None:
        made = generator(torch.randn(4, 3))
        second.zero_grad()
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(made).mean()).backward()
        first.step()

    return run
