"""Attention and recurrence: encoders, decoders, generation with a cache, LSTM, GRU, mixtures of experts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.support.programs.catalog import Program, old_interfaces, program, training_step
from tests.support.programs.models import CausalDecoder, Transformer


@program
def transformer_training() -> Program:
    model = Transformer()
    tokens = torch.arange(16).view(2, 8)
    return training_step(model, lambda: functional.cross_entropy(model(tokens).view(-1, 64), tokens.view(-1)))


@program
def encoder_with_mask() -> Program:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, padding = torch.randn(3, 5, 16), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    return training_step(model, lambda: model(x, src_key_padding_mask=padding).square().mean())


@program
def encoder_fast_path() -> Program:
    """In inference torch runs a whole layer as one operator."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 16)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return run


@program
def sequence_to_sequence() -> Program:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    source, target = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return training_step(model, lambda: model(source, target, tgt_mask=mask).square().mean())


@program
def causal_decoder_training() -> Program:
    model = CausalDecoder()
    tokens = torch.randint(0, 40, (2, 9))

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return training_step(model, loss)


@program
def generation_with_cache() -> Program:
    model = CausalDecoder().eval()
    prompt = torch.tensor([[3, 1, 4]])

    def run() -> torch.Tensor:
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        tokens, fresh = prompt, prompt
        with torch.inference_mode():
            for _ in range(4):
                scores = model(fresh, cache)[:, -1]
                best = torch.topk(scores, 5)
                chosen = torch.multinomial(functional.softmax(best.values, -1), 1)
                fresh = best.indices.gather(1, chosen)
                tokens = torch.cat([tokens, fresh], 1)
        return tokens

    return run


@program
def attention_of_every_kind() -> Program:
    """The variants of scaled-dot-product attention that a CPU has."""
    q, k, v = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool).tril()

    def run() -> None:
        attend = functional.scaled_dot_product_attention
        total = attend(q, k, v, is_causal=True).sum() + attend(q, k, v, attn_mask=mask).sum()
        total = total + attend(q, k[:, :2], v[:, :2], enable_gqa=True).sum()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            total = total + attend(q, k, v, dropout_p=0.1).sum()
        total.backward()

    return run


@program
def recurrent_training() -> Program:
    model = nn.LSTM(6, 8, num_layers=2, batch_first=True)
    x = torch.ones(3, 5, 6)
    return training_step(model, lambda: model(x)[0].square().sum())


@program
def bidirectional_lstm_of_packed_sequences() -> Program:
    model = nn.LSTM(4, 5, bidirectional=True, dropout=0.2, num_layers=2)
    x, lengths = torch.randn(6, 3, 4), torch.tensor([6, 4, 2])

    def loss() -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        padded, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        return padded.square().mean()

    return training_step(model, loss)


@program
def gru_and_cells() -> Program:
    gru, cell = nn.GRU(4, 5, bidirectional=True, batch_first=True), nn.LSTMCell(10, 4)
    rnn = nn.RNN(4, 3, nonlinearity="relu")
    model, x = nn.ModuleList([gru, cell, rnn]), torch.randn(2, 3, 4)

    def loss() -> torch.Tensor:
        outputs, _ = gru(x)
        state = (torch.zeros(2, 4), torch.zeros(2, 4))
        for moment in outputs.unbind(1):
            state = cell(moment, state)
        return rnn(state[0].unsqueeze(0))[0].sum()

    return training_step(model, loss)


@program
def mixture_of_experts() -> Program:
    router, experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    x = torch.randn(8, 6)

    def loss() -> torch.Tensor:
        weights, chosen = torch.topk(functional.softmax(router(x), -1), 2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, slot = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out.square().mean()

    # Without updates: routing must not change between the runs that are compared.
    return lambda: loss().backward()


@program
def policy_gradient() -> Program:
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])

    def loss() -> torch.Tensor:
        state, logs = torch.zeros(4), []
        for _ in range(5):
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            logs.append(choice.log_prob(action))
            state = state * 0.9 + functional.one_hot(action, 4).float()
        returns = rewards.flip(0).cumsum(0).flip(0)
        return -(torch.stack(logs) * (returns - returns.mean()) / returns.std()).sum()

    return training_step(policy, loss)


@program
def weight_normalised() -> Program:
    with old_interfaces():
        old = nn.utils.weight_norm(nn.Linear(4, 4))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    model, x = nn.Sequential(old, new, orthogonal), torch.randn(3, 4)

    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() + weight.triu(1).mT

    nn.utils.parametrize.register_parametrization(new, "bias", nn.Softplus())
    nn.utils.parametrize.register_parametrization(orthogonal, "bias", nn.Tanh())
    square = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(square, "weight", Symmetric())
    whole = nn.Sequential(model, square)

    def loss() -> torch.Tensor:
        with nn.utils.parametrize.cached():
            return whole(x).sum()

    return training_step(whole, loss)
