"""Kinds of numbers and tensors: complex, sparse, quantised, nested, low precision; sorting, random, views, algebra."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.support.programs.catalog import Program, old_interfaces, program


@program
def fourier_and_complex() -> Program:
    x = torch.linspace(0, 1, 64, requires_grad=True)
    return lambda: (torch.fft.ifft(torch.fft.fft(x) * 1j).real + x).sum().backward()


@program
def spectrograms() -> Program:
    signal, window = torch.randn(2, 128, requires_grad=True), torch.hann_window(32)

    def run() -> None:
        waves = torch.stft(signal, 32, 16, window=window, return_complex=True)
        (waves.abs().square().sum() + torch.istft(waves, 32, 16, window=window).sum()).backward()
        torch.fft.rfftn(signal.detach().view(2, 8, 16), dim=(1, 2))
        torch.fft.fftshift(torch.fft.fft2(signal.detach()))

    return run


@program
def complex_model() -> Program:
    weight = torch.randn(4, 4, dtype=torch.cfloat, requires_grad=True)
    x = torch.randn(3, 4, dtype=torch.cfloat)

    def run() -> None:
        hidden = torch.polar((x @ weight).abs(), (x @ weight).angle())
        (torch.view_as_real(hidden).sum() + hidden.conj().real.mean()).backward()

    return run


@program
def sparse_and_scatter() -> Program:
    bag = nn.EmbeddingBag(10, 4, sparse=True)
    index, offsets = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])

    def run() -> torch.Tensor:
        bag(index, offsets).sum().backward()
        sums = torch.zeros(3, 4).scatter_add_(0, torch.tensor([[0, 1, 2, 0]]), torch.ones(1, 4))
        return torch.sparse.mm(torch.eye(3).to_sparse(), sums)

    return run


@program
def sparse_matrices() -> Program:
    dense = torch.eye(4).index_fill(1, torch.tensor([2]), 1.0)
    x = torch.randn(4, 3, requires_grad=True)
    with old_interfaces():
        coo, csr = dense.to_sparse().coalesce(), dense.to_sparse_csr()

    def run() -> None:
        (torch.sparse.mm(coo, x).sum() + (csr @ x).sum()).backward()
        (coo + coo).coalesce().to_dense()
        torch.sparse.softmax(coo, 1)
        torch.sparse.sum(coo, 0)
        (coo.t() @ x.detach()).relu()

    return run


@program
def graph_convolution() -> Program:
    """Message passing by gather and scatter, as graph libraries do it."""
    weight = nn.Linear(4, 4)
    x = torch.randn(5, 4)
    source, target = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 3, 4, 0, 2])

    def run() -> None:
        hidden = weight(x)
        messages = hidden[source]
        sums = torch.zeros(5, 4).index_add(0, target, messages)
        index = target[:, None].expand_as(messages)
        largest = torch.zeros(5, 4).scatter_reduce(0, index, messages, "amax", include_self=False)
        means = torch.zeros(5, 4).scatter_reduce(0, index, messages, "mean")
        degree = torch.bincount(target, minlength=5).clamp(min=1)
        attention = torch.zeros(5).scatter_add(0, target, torch.ones(6))
        ((sums / degree[:, None]) + largest + means + attention[:, None]).sum().backward()

    return run


@program
def embeddings() -> Program:
    plain = nn.Embedding(20, 4, padding_idx=0, max_norm=1.0, scale_grad_by_freq=True)
    bags = [nn.EmbeddingBag(20, 4, mode=mode) for mode in ("sum", "mean", "max")]
    index, offsets = torch.tensor([1, 2, 0, 4, 4]), torch.tensor([0, 3])

    def run() -> None:
        total = plain(index).sum()
        for bag in bags:
            total = total + bag(index, offsets).sum()
        total.backward()

    return run


@program
def quantised_linear() -> Program:
    with old_interfaces():
        model = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), {nn.Linear}, dtype=torch.qint8
        )
    x = torch.randn(3, 8)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return run


@program
def quantised_tensors() -> Program:
    x = torch.randn(2, 3, 6, 6)

    def run() -> None:
        with old_interfaces():
            quantised = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
            functional.max_pool2d(quantised, 2).dequantize()
            torch.quantize_per_channel(x, torch.ones(3), torch.zeros(3), 1, torch.qint8).int_repr()
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)

    return run


@program
def mixed_precision() -> Program:
    model = nn.Linear(8, 8)
    x = torch.ones(4, 8)

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x).float().sum().backward()

    return run


@program
def low_precision() -> Program:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)).to(torch.bfloat16)
    x = torch.randn(2, 1, 6, 6, dtype=torch.bfloat16)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        scaler.scale(model(x).float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        x.to(torch.float16).to(torch.float8_e4m3fn).to(torch.float32)

    return run


@program
def nested_tensors() -> Program:
    parts = [torch.randn(length, 4) for length in (2, 5, 3)]
    layer = nn.Linear(4, 4)

    def run() -> None:
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        functional.gelu(layer(nested)).sum().backward()
        with old_interfaces():
            strided = torch.nested.nested_tensor(parts)
        torch.nested.to_padded_tensor(layer(strided), 0.0)

    return run


@program
def sorting_and_searching() -> Program:
    x = torch.tensor([[3.0, 1.0, 2.0, 2.0], [0.0, 5.0, 5.0, 1.0]])

    def run() -> None:
        x.sort(dim=1, descending=True, stable=True)
        torch.topk(x, 2)
        x.argsort()
        torch.unique(x, return_inverse=True, return_counts=True)
        torch.unique_consecutive(x.flatten())
        torch.searchsorted(torch.arange(5.0), x)
        torch.bucketize(x, torch.arange(5.0))
        torch.histc(x, 4)
        x.kthvalue(2), x.median(), x.mode(), x.nonzero(), torch.isin(x, torch.tensor([1.0]))
        torch.quantile(x, 0.5, dim=1)
        x.cummax(1), x.cumprod(0), x.logcumsumexp(1), x.aminmax()

    return run


@program
def random_numbers() -> Program:
    generator = torch.Generator().manual_seed(3)

    def run() -> None:
        torch.rand(3, generator=generator).normal_().uniform_(-1, 1)
        torch.randperm(6, generator=generator)
        torch.randint(0, 5, (4,))
        torch.bernoulli(torch.full((3,), 0.5))
        torch.multinomial(torch.ones(4), 2)
        torch.distributions.Gamma(torch.ones(2), torch.ones(2)).sample()
        torch.distributions.Dirichlet(torch.ones(3)).rsample()
        functional.dropout(torch.ones(4), 0.5)
        functional.gumbel_softmax(torch.zeros(2, 3), hard=True)

    return run


@program
def views_and_writes() -> Program:
    base = torch.zeros(4, 6)

    def run() -> None:
        part = base.view(2, 2, 6).transpose(0, 1)[..., ::2]
        part.add_(1).mul_(0.5).clamp_(0, 1)
        base[1:3, 2] = 7
        base[base > 5] = 0
        base.unfold(1, 3, 2).contiguous().masked_fill_(torch.tensor(False), 1)
        base.as_strided((2, 2), (6, 1)).copy_(torch.ones(2, 2))
        torch.add(base, 1, out=torch.empty(4, 6))
        base.t().reshape(-1).split(5)
        base.diagonal().fill_(2)
        base.set_(base.clone()).resize_(4, 6)
        torch._foreach_add_([base, base.clone()], 1.0)
        torch.stack(base.unbind(0)).flip(0).roll(1).tile(2).repeat_interleave(2, 0)

    return run


@program
def linear_algebra() -> Program:
    x = torch.randn(4, 4)
    positive = (x @ x.T + 4 * torch.eye(4)).requires_grad_()
    right = torch.randn(4, 2)

    def run() -> None:
        total = torch.linalg.cholesky(positive).sum() + torch.linalg.solve(positive, right).sum()
        total = total + torch.linalg.slogdet(positive)[1] + torch.linalg.eigvalsh(positive).sum()
        total = total + torch.linalg.svdvals(positive).sum() + torch.linalg.inv(positive).trace()
        total.backward()
        torch.linalg.qr(x), torch.linalg.lstsq(x, right), torch.linalg.matrix_exp(x), torch.linalg.eig(x)
        torch.einsum("ij,jk,kl->il", x, x, right)
        torch.linalg.multi_dot([x, x, right])
        torch.baddbmm(torch.zeros(2, 4, 4), x.expand(2, 4, 4), x.expand(2, 4, 4))
        torch.kron(x, x), torch.cdist(x, x), torch.tensordot(x, x, 1), torch.linalg.matrix_rank(x)

    return run


@program
def normalisation_and_pooling() -> Program:
    x = torch.randn(2, 4, 8, 8, requires_grad=True)

    def run() -> None:
        total = functional.layer_norm(x, [8, 8]).sum() + functional.group_norm(x, 2).sum()
        total = total + functional.rms_norm(x, [8]).sum() + functional.local_response_norm(x, 2).sum()
        total = total + functional.normalize(x, dim=1).sum() + functional.lp_pool2d(x, 2, 2).sum()
        total = total + functional.adaptive_max_pool2d(x, 3).sum() + functional.avg_pool2d(x, 3, 1, 1).sum()
        pooled, where = functional.max_pool2d(x, 2, return_indices=True)
        total = total + functional.max_unpool2d(pooled, where, 2).sum()
        total = total + functional.fold(functional.unfold(x, 2, stride=2), (8, 8), 2, stride=2).sum()
        total = total + functional.interpolate(x, scale_factor=0.5, mode="bicubic").sum()
        total = total + functional.pad(x, (1, 1, 1, 1), mode="circular").sum()
        total.backward()

    return run
