"""Usual networks at their usual settings: how many get a finding, and whether what `single-tensor-optimizer` promises is what its advice gains.

The networks are those of libraries, small enough for a processor, with an optimizer as its documentation shows it. Where the finding is, the optimizer is made
as its advice says, and steps of both take turns. Times are of the processor with one thread, which other programs disturb least.
"""

import gc
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import kinetoscope
from benchmarks.harness import Result, run
from kinetoscope.analyses.findings import examine
from tests.support.undisturbed import undisturbed

LEAST_PERCENT, FALSE_PERCENT = 5.0, 5.0
NEAR, NEAR_PERCENT = 0.3, 80.0
NEAR_FLOOR, NEAR_FLOOR_PERCENT = 1.5, 80.0
CODE = "single-tensor-optimizer"
WARM_UP, RECORDED = 3, 12

Loss = Callable[[], torch.Tensor]
Optimizer = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Network:
    """A network that is trained.

    Attributes:
        make: Makes it, and what computes its loss on a batch.
        optimizer: The class of its optimizer.
        options: The options of its optimizer.
    """

    make: Callable[[], tuple[nn.Module, Loss]]
    optimizer: Optimizer
    options: dict[str, Any]

    def step(self, **options: Any) -> Callable[[], None]:
        """A training step, with further options of the optimizer."""
        torch.manual_seed(0)
        model, loss = self.make()
        optimizer = self.optimizer(model.parameters(), **self.options, **options)

        def step() -> None:
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step


def options_of(parser: ArgumentParser) -> None:
    """Add the number of steps of each side, and which networks."""
    parser.add_argument("--steps", type=int, default=30, help="steps of each optimizer (%(default)s)")
    parser.add_argument("--only", default="", help="networks with this in their name")


def classified(model: nn.Module, *shape: int, classes: int = 10) -> tuple[nn.Module, Loss]:
    """A model that classifies, and its loss on a batch of a shape."""
    x, y = torch.randn(*shape), torch.randint(0, classes, (shape[0],))
    return model, lambda: nn.functional.cross_entropy(model(x), y)


def perceptron(width: int, depth: int) -> tuple[nn.Module, Loss]:
    """Linear layers."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return classified(nn.Sequential(nn.Linear(784, width), nn.ReLU(), *layers, nn.Linear(width, 10)), 64, 784)


def lenet() -> tuple[nn.Module, Loss]:
    """LeNet-5, as the MNIST examples have it."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return classified(model, 64, 1, 28, 28)


class Language(nn.Module):
    """A language model of a recurrent layer."""

    def __init__(self, cell: type[nn.Module], words: int = 2000, width: int = 200) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.recurrent = cell(width, width, 2)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of the next word."""
        out: torch.Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return out


def language(cell: type[nn.Module]) -> tuple[nn.Module, Loss]:
    """A language model as in torch's word_language_model, truncated to 35 words."""
    model = Language(cell)
    tokens = torch.randint(0, 2000, (36, 20))
    return model, lambda: nn.functional.cross_entropy(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten())


def encoder(layers: int, width: int, length: int, rows: int) -> tuple[nn.Module, Loss]:
    """An encoder of torch's own transformer layers."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    x = torch.randn(rows, length, width)
    return model, lambda: model(x).square().mean()


def autoencoder() -> tuple[nn.Module, Loss]:
    """An autoencoder of images."""
    model = nn.Sequential(
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 256),
        nn.ReLU(),
        nn.Linear(256, 784),
    )
    x = torch.rand(128, 784)
    return model, lambda: nn.functional.mse_loss(model(x), x)


def q_network() -> tuple[nn.Module, Loss]:
    """The network of a deep Q learner for CartPole."""
    model = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    state, reward = torch.randn(128, 4), torch.randn(128)
    return model, lambda: nn.functional.smooth_l1_loss(model(state).max(1).values, reward)


def of_transformers(
    model: str, config: str, inputs: Callable[[], dict[str, torch.Tensor]], **sizes: Any
) -> tuple[nn.Module, Loss]:
    """A model of transformers, by the names of its class and its configuration."""
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    made.train()
    batch = inputs()

    def loss() -> torch.Tensor:
        found: torch.Tensor = made(**batch).loss
        return found

    return made, loss


def words(rows: int, length: int, labels: str = "tokens") -> dict[str, torch.Tensor]:
    """A batch of words, with the words or a class as labels."""
    tokens = torch.randint(5, 1000, (rows, length))
    return {"input_ids": tokens, "labels": tokens if labels == "tokens" else torch.randint(0, 2, (rows,))}


def images(rows: int, size: int) -> dict[str, torch.Tensor]:
    """A batch of images."""
    return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(0, 2, (rows,))}


def graph(layer: str) -> tuple[nn.Module, Loss]:
    """A graph network of two layers of torch_geometric, for a graph as large as Cora."""
    from torch_geometric import nn as layers

    make = getattr(layers, layer)
    model = layers.Sequential(
        "x, edges", [(make(1433, 16), "x, edges -> x"), nn.ReLU(), (make(16, 7), "x, edges -> x")]
    )
    x, edges, y = torch.randn(2708, 1433), torch.randint(0, 2708, (2, 10556)), torch.randint(0, 7, (2708,))
    return model, lambda: nn.functional.cross_entropy(model(x, edges), y)


_BERT: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
_VISION: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "image_size": 64,
    "patch_size": 8,
}
ADAM, ADAMW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
NETWORKS = {
    "multilayer perceptron": Network(lambda: perceptron(256, 2), ADAM, {"lr": 1e-3}),
    "deep perceptron": Network(lambda: perceptron(128, 12), ADAM, {"lr": 1e-3}),
    "LeNet": Network(lenet, SGD, {"lr": 1e-2, "momentum": 0.9}),
    "autoencoder": Network(autoencoder, ADAM, {"lr": 1e-3}),
    "Q network": Network(q_network, ADAMW, {"lr": 1e-4, "amsgrad": True}),
    "LSTM": Network(lambda: language(nn.LSTM), ADAM, {"lr": 1e-3}),
    "GRU": Network(lambda: language(nn.GRU), SGD, {"lr": 1.0}),
    "torch's transformer": Network(lambda: encoder(4, 128, 64, 16), ADAMW, {"lr": 1e-3}),
    "torch's small transformer": Network(lambda: encoder(6, 64, 32, 8), ADAM, {"lr": 1e-3}),
    "BERT": Network(lambda: of_transformers("BertForSequenceClassification", "BertConfig", lambda: words(8, 64, "class"), **_BERT), ADAMW, {"lr": 5e-5}),
    "DistilBERT": Network(lambda: of_transformers("DistilBertForSequenceClassification", "DistilBertConfig", lambda: words(8, 64, "class"), vocab_size=1000, dim=128, n_layers=3, n_heads=4, hidden_dim=512), ADAMW, {"lr": 5e-5}),
    "GPT-2": Network(lambda: of_transformers("GPT2LMHeadModel", "GPT2Config", lambda: words(4, 128), vocab_size=1000, n_embd=192, n_layer=4, n_head=6, n_positions=128), ADAMW, {"lr": 3e-4}),
    "Llama": Network(lambda: of_transformers("LlamaForCausalLM", "LlamaConfig", lambda: words(4, 128), vocab_size=1000, hidden_size=192, num_hidden_layers=4, num_attention_heads=6, intermediate_size=512), ADAMW, {"lr": 3e-4}),
    "T5": Network(lambda: of_transformers("T5ForConditionalGeneration", "T5Config", lambda: words(8, 48), vocab_size=1000, d_model=128, num_layers=3, num_heads=4, d_kv=32, d_ff=512, decoder_start_token_id=0), ADAMW, {"lr": 1e-4}),
    "ViT": Network(lambda: of_transformers("ViTForImageClassification", "ViTConfig", lambda: images(16, 64), **_VISION), ADAMW, {"lr": 1e-3}),
    "ResNet": Network(lambda: of_transformers("ResNetForImageClassification", "ResNetConfig", lambda: images(8, 64), embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"), SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
    "MobileNet": Network(lambda: of_transformers("MobileNetV2ForImageClassification", "MobileNetV2Config", lambda: images(8, 96), image_size=96), ADAM, {"lr": 1e-3}),
    "ConvNeXt": Network(lambda: of_transformers("ConvNextForImageClassification", "ConvNextConfig", lambda: images(8, 64), hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], image_size=64), ADAMW, {"lr": 1e-3}),
    "Wav2Vec2": Network(lambda: of_transformers("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", lambda: {"input_values": torch.randn(2, 16_000), "labels": torch.tensor([0, 1])}, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512, mask_time_prob=0.0), ADAMW, {"lr": 1e-4}),
    "GCN": Network(lambda: graph("GCNConv"), ADAM, {"lr": 0.01, "weight_decay": 5e-4}),
    "GraphSAGE": Network(lambda: graph("SAGEConv"), ADAM, {"lr": 0.01}),
}  # fmt: skip
"""The networks by name."""


@dataclass(frozen=True)
class Promise:
    """What the finding promises for a network, and what its advice gains.

    Attributes:
        network: The name.
        step_ns: How long a step takes, of the processor.
        promised_percent: The gain that the finding promises, 0 without the finding.
        gained_percent: What a step with the optimizer of the advice takes less.
        codes: The other findings.
        times_floor: How many times its floor a step takes; None where that is unknown.
    """

    network: str
    step_ns: float
    promised_percent: float
    gained_percent: float
    codes: list[str]
    times_floor: float | None


def promise_of(name: str, network: Network, steps: int) -> Promise:
    """Record a network, look at its findings, and time its step with both optimizers in turn."""
    step = network.step()
    for _ in range(WARM_UP):
        step()
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=RECORDED, repeat=1)
    with kinetoscope.profile(record_shapes=True, profile_memory=True, schedule=schedule) as prof:
        for _ in range(RECORDED + 1):
            step()
            prof.step()
    with undisturbed(prof.trace) as trace:
        report = examine(trace)
    promised = next(
        (100 * (one.gain_ns or 0) / report.whole_ns for one in report.findings if one.code == CODE), 0.0
    )
    codes = [
        one.code
        for one in report.findings
        if one.code not in (CODE, "processor-wait")
        and 100 * (one.gain_ns or 0) >= LEAST_PERCENT * report.whole_ns
    ]
    sides = (step, network.step(fused=True))
    times: tuple[list[int], list[int]] = ([], [])
    for number in range(WARM_UP + steps):
        for side, took in zip(sides, times, strict=True):
            before = time.process_time_ns()
            side()
            if number >= WARM_UP:
                took.append(time.process_time_ns() - before)
    plain, fused = (statistics.median(each) for each in times)
    kinds = report.account.kinds if report.account is not None else ()
    times_floor = kinds[0].times_floor if kinds else None
    return Promise(name, plain, promised, 100 * (1 - fused / plain), codes, times_floor)


def measure(options: Namespace) -> list[Result]:
    """Measure all networks, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    try:
        for name, network in list(NETWORKS.items())[: 3 if options.quick else None]:
            if options.only in name:
                found.append(promise_of(name, network, options.steps))
                gc.collect()
    finally:
        torch.set_num_threads(threads)
    said = [one for one in found if one.promised_percent]
    near = [one for one in said if abs(one.promised_percent / max(one.gained_percent, 1e-9) - 1) <= NEAR]
    true = [one for one in said if one.gained_percent >= LEAST_PERCENT]
    others = [one for one in found if one.codes]
    notes = [
        f"{one.network}: {one.step_ns / 1e6:.2f} ms, promised {one.promised_percent:.1f} %, gained {one.gained_percent:.1f} %"
        for one in found
    ]
    known = [one.times_floor for one in found if one.times_floor is not None]
    near_floor = 100 * sum(one <= NEAR_FLOOR for one in known) / max(len(known), 1)
    far = [f"{one.network}: {one.times_floor or 0.0:.2f}" for one in found]
    false = 100 * (len(said) - len(true)) / max(len(found), 1)
    percent = 100 * len(near) / max(len(said), 1)
    other = 100 * len(others) / max(len(found), 1)
    return [
        Result(f"{len(found)} networks, of which {len(said)} have {CODE}: gains less than {LEAST_PERCENT:g} %", f"<= {FALSE_PERCENT:g} %", f"{false:.0f} %", false <= FALSE_PERCENT, notes),
        Result(f"{len(said)} promises within {100 * NEAR:g} % of the gain", f">= {NEAR_PERCENT:g} %", f"{percent:.0f} %", percent >= NEAR_PERCENT, []),
        Result(f"{len(found)} networks: with another finding of {LEAST_PERCENT:g} %", f"<= {FALSE_PERCENT:g} %", f"{other:.0f} %", other <= FALSE_PERCENT, [f"{one.network}: {', '.join(one.codes)}" for one in others]),
        Result(f"{len(known)} networks: step at most {NEAR_FLOOR:g} times its floor", f">= {NEAR_FLOOR_PERCENT:g} %", f"{near_floor:.0f} %", near_floor >= NEAR_FLOOR_PERCENT, far),
    ]  # fmt: skip


if __name__ == "__main__":
    run(measure, options_of)
