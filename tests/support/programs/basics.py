"""The smallest programs: one model, one step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.support.programs.catalog import Program, program, training_step
from tests.support.programs.models import Transformer


@program
def mlp_training() -> Program:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.ones(5, 8), torch.zeros(5, dtype=torch.long)
    return training_step(model, lambda: functional.cross_entropy(model(x), y))


@program
def inference() -> Program:
    model = Transformer(layers=1).eval()
    tokens = torch.arange(8).view(1, 8)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens).argmax(-1)

    return run


@program
def nested_ranges() -> Program:
    x = torch.ones(3)

    def run() -> None:
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            x + 1
        torch.cat([x, x, x]).view(3, 3).tolist()

    return run


@program
def ranges_of_every_kind() -> Program:
    """Ranges with arguments, as decorators, of one name inside each other, and across an exception."""
    x = torch.ones(4)

    @torch.profiler.record_function("decorated")
    def doubled(values: torch.Tensor) -> torch.Tensor:
        return values + values

    def failing() -> None:
        with torch.profiler.record_function("fails"):
            doubled(x)
            raise KeyError("on purpose")

    def run() -> None:
        with torch.profiler.record_function("with text", "args=1"):
            doubled(x)
        with torch.profiler.record_function("same"), torch.profiler.record_function("same"):
            doubled(doubled(x))
        try:
            failing()
        except KeyError:
            torch.zeros(2)
        with torch.autograd.profiler.record_function("empty"):
            pass
        with torch.profiler.record_function('ünïcode "quoted" \\ 名前'):
            x.sum()

    return run


@program
def gradient_accumulation() -> Program:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(4, 5, 6)

    def run() -> None:
        optimizer.zero_grad(set_to_none=False)
        for batch in batches:
            (model(batch).square().mean() / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()

    return run


@program
def scheduled_learning_rate() -> Program:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    x = torch.randn(3, 4)

    def run() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()

    return run


@program
def averaged_weights() -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    x = torch.randn(6, 4)

    def run() -> torch.Tensor:
        model(x)
        averaged.update_parameters(model)
        return averaged(x)

    return run


@program
def losses() -> Program:
    """One of each loss, forward and backward."""
    scores = torch.randn(5, 7, requires_grad=True)
    other = torch.randn(5, 7)
    label = torch.arange(5)
    sign = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    lengths = torch.full((2,), 3, dtype=torch.long)

    def run() -> None:
        positive = torch.sigmoid(scores)
        total = functional.cross_entropy(scores, label, label_smoothing=0.1)
        total = total + functional.nll_loss(functional.log_softmax(scores, 1), label)
        total = total + functional.mse_loss(scores, other) + functional.l1_loss(scores, other)
        total = total + functional.huber_loss(scores, other) + functional.smooth_l1_loss(scores, other)
        total = total + functional.kl_div(
            functional.log_softmax(scores, 1), functional.softmax(other, 1), reduction="batchmean"
        )
        total = total + functional.binary_cross_entropy(positive, torch.sigmoid(other))
        total = total + functional.binary_cross_entropy_with_logits(scores, torch.sigmoid(other))
        total = total + functional.cosine_embedding_loss(scores, other, sign)
        total = total + functional.margin_ranking_loss(scores[:, 0], other[:, 0], sign)
        total = total + functional.triplet_margin_loss(scores, other, other.flip(0))
        total = total + functional.multi_margin_loss(scores, label)
        total = total + functional.soft_margin_loss(scores[:, 0], sign)
        total = total + functional.poisson_nll_loss(scores, positive.detach())
        total = total + functional.gaussian_nll_loss(scores, other, positive)
        frames = functional.log_softmax(scores.unsqueeze(1).expand(5, 2, 7), 2)
        total = total + functional.ctc_loss(frames, torch.ones(2, 3, dtype=torch.long), lengths + 2, lengths)
        total.backward()

    return run
