"""Train a small convolutional net to read digits drawn from a bitmap font.

Images are drawn on demand: a digit of the font, enlarged, moved, with random brightness and noise. This is a plain training
script without any profiler.

    python train_convnet.py --steps 60
    kinetoscope run train_convnet.py --steps 60
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

# Ten digits of five by seven dots; each word is a row of dots.
FONT = (
    ".###. #...# #..## #.#.# ##..# #...# .###.",
    "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
    ".###. #...# ....# ...#. ..#.. .#... #####",
    ".###. #...# ....# ..##. ....# #...# .###.",
    "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
    "##### #.... ####. ....# ....# #...# .###.",
    "..##. .#... #.... ####. #...# #...# .###.",
    "##### ....# ...#. ..#.. .#... .#... .#...",
    ".###. #...# #...# .###. #...# #...# .###.",
    ".###. #...# #...# .#### ....# ...#. .##..",
)


class Digits(Dataset[tuple[Tensor, int]]):
    """Images of digits, drawn on demand with the index as random seed."""

    def __init__(self, images: int, pixels: int) -> None:
        self.images = images
        self.pixels = pixels
        dots = [[[dot == "#" for dot in row] for row in digit.split()] for digit in FONT]
        self.font = torch.tensor(dots, dtype=torch.float32)

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chance = torch.Generator().manual_seed(index)
        digit = int(torch.randint(10, (), generator=chance))
        height = int(torch.randint(self.pixels // 2, self.pixels, (), generator=chance))
        width = max(5, height * 5 // 7)
        glyph = functional.interpolate(self.font[digit][None, None], size=(height, width), mode="bilinear")[
            0, 0
        ]
        image = 0.25 * torch.randn(self.pixels, self.pixels, generator=chance)
        top = int(torch.randint(self.pixels - height + 1, (), generator=chance))
        left = int(torch.randint(self.pixels - width + 1, (), generator=chance))
        brightness = 0.5 + torch.rand((), generator=chance)
        image[top : top + height, left : left + width] += brightness * glyph
        return image[None], digit


class ConvBlock(nn.Module):
    """Convolution, batch normalization, ReLU, and downsampling by two."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = functional.relu(self.norm(x))
        return functional.max_pool2d(x, 2)


class ConvNet(nn.Module):
    """Three convolution blocks and a linear layer on their averaged output."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvBlock(1, channels),
            ConvBlock(channels, 2 * channels),
            ConvBlock(2 * channels, 4 * channels),
        )
        self.classify = nn.Linear(4 * channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.features(images)
        return self.classify(seen.mean(dim=(2, 3)))


def endless(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[list[Tensor]]:
    """Yield the batches of a loader in an endless loop."""
    while True:
        yield from loader


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small convolutional net to read drawn digits.")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images per batch (%(default)s)")
    parser.add_argument("--pixels", type=int, default=32, help="height and width of an image (%(default)s)")
    parser.add_argument("--channels", type=int, default=16, help="channels of the first convolution (%(default)s)")
    parser.add_argument("--images", type=int, default=4096, help="images in the data set (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images (%(default)s)")
    parser.add_argument(
        "--learning-rate", type=float, default=0.05, help="learning rate of SGD with momentum (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed (%(default)s)")
    parser.add_argument(
        "--log-every", type=int, default=1, help="steps between printed losses (%(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="device to train on (%(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train, print the loss, and return the loss of every step."""
    options = arguments(argv)
    torch.manual_seed(options.seed)
    digits = Digits(options.images, options.pixels)
    loader = DataLoader(digits, options.batch, shuffle=True, num_workers=options.workers, drop_last=True)
    model = ConvNet(options.channels).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)

    losses = []
    for step, (images, labels) in zip(range(options.steps), endless(loader), strict=False):
        labels = labels.to(options.device)
        logits = model(images.to(options.device))
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % options.log_every == 0 or step == options.steps - 1:
            accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
            print(
                f"step {step + 1:4d}/{options.steps}  loss {losses[-1]:.4f}  accuracy {accuracy:4.0%}", flush=True
            )
    return losses


if __name__ == "__main__":
    main(sys.argv[1:])
