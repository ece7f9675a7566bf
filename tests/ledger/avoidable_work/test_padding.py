"""Work on padding: small recorded models on batches whose rows are filled up, and on batches that are not."""

import pytest
import torch
from torch import nn

import kinetoscope
from kinetoscope.ledger.avoidable_work.padding import Padding, paddings_of
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model.time_spent import Cause

torch.manual_seed(0)
words, places, kinds = nn.Embedding(1000, 32), nn.Embedding(512, 32), nn.Embedding(2, 32)
layer, recurrent = nn.Linear(32, 32), nn.GRU(32, 32, batch_first=True)
LENGTHS = (12, 20, 8, 16, 10, 20, 14, 12)


def ids(columns, *, left=False, end=0, dtype=torch.long):
    """A batch of sequences of indices of several lengths, filled up to so many columns."""
    batch = torch.full((len(LENGTHS), columns), end, dtype=dtype)
    for row, length in enumerate(LENGTHS):
        part = slice(columns - length, None) if left else slice(length)
        batch[row, part] = torch.randint(2, 1000, (length,), dtype=dtype)
    return batch


def recorded(step):
    with kinetoscope.profile(record_shapes=True, with_stack=True, tensor_versions=True) as prof:
        step()
    return prof.trace


def paddings(step):
    return {
        (padding.rows, padding.columns): (round(padding.longest), round(padding.part * padding.rows * padding.columns))
        for padding in paddings_of(recorded(step))
    }  # fmt: skip


@pytest.mark.parametrize(
    "batch",
    [
        ids(64),
        ids(64, left=True),
        ids(64, end=1),
        ids(64, dtype=torch.int32),
    ],
    ids=["zeros at the end", "at the beginning", "another value", "32 bits"],
)
def test_indices_say_what_is_padding(batch):
    assert paddings(lambda: layer(words(batch))) == {(8, 64): (20, 8 * 64 - sum(LENGTHS))}


def test_tables_of_positions_and_kinds_do_not_hide_it():
    batch = ids(64)

    def step():
        everywhere = torch.arange(64).expand(8, 64).contiguous()
        return layer(words(batch) + places(everywhere) + kinds(torch.zeros(8, 64, dtype=torch.long)))

    assert paddings(step) == {(8, 64): (20, 8 * 64 - sum(LENGTHS))}


def test_rows_of_zeros_are_padding_of_features():
    features = torch.zeros(8, 64, 32)
    for row, length in enumerate(LENGTHS):
        features[row, :length] = torch.randn(length, 32)
    left_out = {(8, 64): (20, 8 * 64 - sum(LENGTHS))}
    assert paddings(lambda: layer(features)) == left_out
    assert paddings(lambda: recurrent(features)) == left_out


def test_pad_sequence_says_it_by_sizes():
    def step():
        sequences = [torch.randn(length, 32) for length in LENGTHS]
        return layer(nn.utils.rnn.pad_sequence(sequences[:1] * 7 + [torch.randn(64, 32)], batch_first=True))

    assert paddings(step) == {(8, 64): (64, 7 * (64 - LENGTHS[0]))}


@pytest.mark.parametrize(
    "step",
    [
        lambda: layer(words(torch.randint(2, 1000, (8, 64)))),
        lambda: layer(words(ids(20))),
        lambda: layer(torch.randn(8, 64, 32)),
        lambda: layer(torch.ones(8, 64, 32)),
        lambda: words(torch.zeros(8, 4, dtype=torch.long)),
        lambda: layer(words(torch.arange(64).expand(8, 64))),
    ],
    ids=["full", "little", "features", "constant features", "few columns", "a view"],
)
def test_other_batches_have_none(step):
    assert paddings(step) == {}


def test_the_maker_of_a_batch_is_known():
    trace = recorded(
        lambda: layer(words(torch.zeros(8, 64, dtype=torch.long).index_fill_(1, torch.arange(20), 5)))
    )
    (padding,) = paddings_of(trace)
    assert trace.strings[trace.column("spans", "name")[padding.maker]] == "aten::zeros"


def test_work_on_the_batch_is_marked_and_other_work_is_not():
    batch, other = ids(64), torch.randn(40, 32)

    def step():
        (layer(words(batch)).sum() + layer(other).sum()).backward()

    trace = recorded(step)
    waste, spans = waste_of(trace), trace.columns("spans")
    marked = [
        trace.strings[spans["name"][row]] for row in (waste.why[:-1] == Cause.PADDING).nonzero()[0].tolist()
    ]
    assert {"aten::embedding", "aten::linear", "aten::mm"} <= {*marked}
    assert marked.count("aten::linear") == 1
    assert waste.part[waste.why == Cause.PADDING].max() == pytest.approx(1 - 20 / 64, abs=0.01)


@pytest.mark.parametrize(
    ("longest", "part", "linear", "square"),
    [
        pytest.param(16.0, 0.9, 0.75, 1 - 0.25**2, id="a fixed length"),
        pytest.param(64.0, 0.5, 0.5, 1 - 0.5**2 - 0.5**2 / 3, id="rows of different lengths"),
    ],
)
def test_what_could_go(longest, part, linear, square):
    padding = Padding(8, 64, longest, part, -1)
    assert padding.avoidable(0) == 0
    assert padding.avoidable(1) == pytest.approx(linear)
    assert padding.avoidable(2) == pytest.approx(square)
