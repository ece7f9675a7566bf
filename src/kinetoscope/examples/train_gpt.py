"""Train a small GPT on the first five chapters of "Alice's Adventures in Wonderland".

This is a plain training script without any profiler. Run it as it is, or with one:

    python train_gpt.py --steps 60
    kinetoscope run train_gpt.py --steps 60
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT_FILE = Path(__file__).resolve().with_name("alice.txt")


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = functional.gelu(x)
        return self.down(x)


class Block(nn.Module):
    """One transformer layer, with normalization before each half."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class GPT(nn.Module):
    """Token and position embeddings, a stack of blocks, and a head that predicts the next character."""

    def __init__(self, characters: int, width: int, heads: int, layers: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TrainingText:
    """The training text as character ids, in random windows."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.alphabet = sorted(set(text))
        number = {character: index for index, character in enumerate(self.alphabet)}
        self.tokens = torch.tensor([number[character] for character in text])

    def batch(self, size: int, context: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.tokens) - context, (size, 1))
        windows = self.tokens[starts + torch.arange(context + 1)]
        return windows[:, :-1], windows[:, 1:]

    def decode(self, tokens: Tensor) -> str:
        return "".join(self.alphabet[index] for index in tokens.tolist())


def mean_loss(logits: Tensor, targets: Tensor, *, one_by_one: bool) -> Tensor:
    """Cross entropy of a prediction for each character."""
    if not one_by_one:
        return functional.cross_entropy(logits, targets)
    total = logits.new_zeros(())
    for row, target in zip(logits, targets.tolist(), strict=True):
        total = total - functional.log_softmax(row, dim=-1)[target]
    return total / len(targets)


@torch.no_grad()
def generate(model: GPT, text: TrainingText, start: Tensor, length: int, context: int) -> str:
    """Generate `length` characters after `start`."""
    tokens = start
    for _ in range(length):
        chances = functional.softmax(model(tokens[None, -context:])[0, -1] / 0.8, dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1)])
    return text.decode(tokens)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on characters of Alice in Wonderland.")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="windows per batch (%(default)s)")
    parser.add_argument("--context", type=int, default=64, help="characters per window (%(default)s)")
    parser.add_argument("--width", type=int, default=128, help="width of the model (%(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="attention heads (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="learning rate of AdamW (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (%(default)s)")
    parser.add_argument(
        "--log-every", type=int, default=1, help="steps between printed losses (%(default)s)"
    )
    parser.add_argument(
        "--sample", type=int, default=0, help="characters to generate after training (%(default)s)"
    )
    parser.add_argument(
        "--loss-one-by-one",
        action="store_true",
        help="compute the loss of one character at a time: a mistake that makes it slow",
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of torch's operators (torch's choice)")
    parser.add_argument("--device", default="cpu", help="device to train on (%(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train, print the loss, and return the loss of every step."""
    options = arguments(argv)
    torch.manual_seed(options.seed)
    if options.threads:
        torch.set_num_threads(options.threads)
    text = TrainingText(TEXT_FILE)
    model = GPT(len(text.alphabet), options.width, options.heads, options.layers, options.context)
    model.to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)

    losses = []
    for step in range(options.steps):
        inputs, targets = (part.to(options.device) for part in text.batch(options.batch, options.context))
        logits = model(inputs)
        loss = mean_loss(logits.flatten(0, 1), targets.flatten(), one_by_one=options.loss_one_by_one)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % options.log_every == 0 or step == options.steps - 1:
            print(f"step {step + 1:4d}/{options.steps}  loss {losses[-1]:.4f}", flush=True)

    if options.sample:
        start = text.tokens[:16].to(options.device)
        print(generate(model, text, start, options.sample, options.context))
    return losses


if __name__ == "__main__":
    main(sys.argv[1:])
