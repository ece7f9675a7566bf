"""Work whose result existed already: what is claimed of recorded programs, and what is not where anything is in doubt."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import kinetoscope
from kinetoscope.ledger.avoidable_work.repeats import repeats_of
from kinetoscope.model.time_spent import CAUSES, Cause
from kinetoscope.trace import concatenate
from tests.support.trace_builder import TraceBuilder


def recorded(step, steps=3, **options):
    """The trace of some steps, each of which is called with its number, after one that warms up."""
    options = {"schedule": kinetoscope.schedule(wait=0, warmup=1, active=steps, repeat=1)} | options
    with kinetoscope.profile(tensor_versions=True, **options) as prof:
        for number in range(steps + 1):
            step(number)
            prof.step()
    return prof.trace


def repeated(step, steps=3, **options):
    """The operators that repeat an earlier call, each with how many steps before that was, and the fills that are overwritten."""
    trace = recorded(step, steps, **options)
    found, name = repeats_of(trace), trace.column("spans", "name")
    where = {0: found.same_step, 1: found.earlier_step, "overwritten": found.overwritten_by}
    return {
        (trace.strings[name[row]], distance)
        for distance, rows in where.items()
        for row in np.flatnonzero(rows >= 0)
    }


def layers():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))


def large():
    """A tensor of which nobody reads the values."""
    return torch.randn(64, 64)


def test_a_forward_pass_that_is_done_twice_is_repeated_in_the_step():
    model = layers()

    def step(number):
        x = torch.randn(4, 8)
        model(x)
        model(x)

    assert repeated(step) == {("aten::linear", 0), ("aten::relu_", 0)}


def test_what_nothing_has_changed_is_repeated_in_later_steps():
    model, x = layers(), torch.randn(4, 8)

    def step(number):
        with torch.inference_mode():
            model((x - 0.5) / x.std().clamp(min=1e-6))

    names = {"aten::sub", "aten::std", "aten::clamp", "aten::div", "aten::linear", "aten::relu_"}
    assert repeated(step) == {(name, 1) for name in names}


def test_a_repeat_of_an_unchanged_result_counts_as_unchanged():
    x = torch.randn(4, 8)

    def step(number):
        x.exp()
        x.exp()

    trace = recorded(step)
    found = repeats_of(trace)
    # The first step has nothing before it.
    assert (found.same_step >= 0).sum() == 1
    assert (found.earlier_step >= 0).sum() == 4


def changed_in_place(x):
    x.mul_(1.5)


def changed_past_autograd(x):
    x.data.mul_(1.5)


def changed_through_a_view(x):
    x[0].fill_(2.0)


def changed_through_a_list(x):
    torch._foreach_mul_([x], 1.5)


def changed_as_a_result(x):
    torch.add(torch.ones(4, 8), 1.0, out=x)


def changed_by_copying(x):
    x[:2].copy_(torch.zeros(2, 8))


@pytest.mark.parametrize(
    "change",
    [
        changed_in_place,
        changed_past_autograd,
        changed_through_a_view,
        changed_through_a_list,
        changed_as_a_result,
        changed_by_copying,
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_written_in_between_is_no_repeat(change, mode):
    with mode():
        x = torch.randn(4, 8)

    def step(number):
        with mode():
            x.exp()
            change(x)

    assert "aten::exp" not in {name for name, _ in repeated(step)}


def test_parameters_that_an_optimizer_steps_are_no_repeat():
    model, x = layers(), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert repeated(step) == set()


def test_parameters_that_a_hook_of_backward_steps_past_autograd_are_no_repeat():
    model, x = layers(), torch.randn(4, 8)

    def update(parameter):
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    assert repeated(lambda number: model(x).sum().backward()) == set()


def tokens_of_a_list(number):
    return torch.tensor([[1, 2, 3], [4, 5, number]])


def tokens_of_an_array(number):
    return torch.from_numpy(np.array([[1, 2, 3], [4, 5, number]]))


def tokens_in_part(number):
    return torch.from_numpy(np.array([[1, 2, 3, 9], [4, 5, number, 9]]))[:, :3]


@pytest.mark.parametrize("tokens", [tokens_of_a_list, tokens_of_an_array])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_small_tensors_that_are_made_anew_are_known_by_their_values(tokens, mode):
    embedding, layer = nn.Embedding(20, 8), nn.Linear(8, 4)

    def step(number, changes):
        with mode():
            layer(embedding(tokens(number if changes else 6)))

    repeats = repeated(lambda number: step(number, False))
    assert {("aten::embedding", 1), ("aten::linear", 1)} <= repeats
    changing = repeated(lambda number: step(number, True))
    assert not {"aten::embedding", "aten::linear"} & {name for name, _ in changing}


def test_tensors_that_are_larger_or_not_dense_are_not_known_by_their_values():
    embedding = nn.Embedding(20, 8)

    def step(number):
        embedding(tokens_in_part(6))
        torch.tensor([1.0] * 2000).exp()
        torch.tensor([1] * 10000).bitwise_not()

    names = {name for name, _ in repeated(step)}
    assert not {"aten::embedding", "aten::exp", "aten::bitwise_not"} & names


def test_memory_of_numpy_is_no_repeat():
    array = np.ones((4, 8), np.float32)
    given, exported = torch.from_numpy(array), torch.randn(4, 8)
    view = exported.numpy()

    def step(number):
        given.exp()
        exported.exp()
        array[:] = number
        view[:] = number + 0.5

    assert repeated(step) == set()


def test_a_new_tensor_at_the_address_of_a_freed_one_is_no_repeat():
    # An allocator may hand out other addresses. This memory has always the same.
    memory, addresses = bytearray(4 * 512 * 512), []

    def step(number):
        x = torch.frombuffer(memory, dtype=torch.float32).normal_()
        addresses.append(x.data_ptr())
        x.exp()

    assert repeated(step, 6) == set()
    assert len(set(addresses)) == 1


def test_a_new_tensor_of_the_allocator_is_no_repeat():
    def step(number):
        torch.randn(512, 512).exp()

    assert repeated(step, 6) == set()


def test_numbers_of_python_tell_calls_apart():
    x = torch.randn(4, 8)

    def step(number):
        x + number
        x * 2.5
        x * -3.0

    assert repeated(step) == {("aten::mul", 1)}


def test_a_conjugate_is_not_what_it_is_one_of():
    def step(number):
        x = torch.randn(4, 8, dtype=torch.complex64)
        x.exp()
        x.conj().exp()
        x.conj().imag + 1.0
        x.imag + 1.0

    assert repeated(step) == set()


def test_a_write_to_an_unknown_tensor_may_be_one_to_any():
    x = torch.randn(4, 8, dtype=torch.complex64)

    def step(number):
        with torch.inference_mode():
            x.exp()
            x.conj().mul_(2.0)

    assert "aten::exp" not in {name for name, _ in repeated(step)}


def test_random_operators_and_those_that_contain_one_are_no_repeat():
    x = torch.randn(2, 2, 4, 8)

    def step(number):
        functional.dropout(x, 0.5)
        x.bernoulli(0.5)
        functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        torch.rand_like(x)

    assert repeated(step) == set()


def test_layers_in_evaluation_go_on_where_those_in_training_do_not():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    assert repeated(lambda number: model(x)) == {("aten::linear", 1)}
    model.eval()
    found = repeated(lambda number: model(x))
    assert found == {("aten::linear", 1), ("aten::batch_norm", 1)}
    assert len(np.flatnonzero(repeats_of(recorded(lambda number: model(x))).earlier_step >= 0)) == 6


def test_statistics_that_training_writes_are_no_repeat():
    x, norm = torch.randn(16, 4), nn.BatchNorm1d(4)

    def step(number):
        norm(x)
        norm.running_mean.exp()

    assert repeated(step) == set()


def test_a_result_that_is_changed_later_was_needed():
    x = torch.randn(4, 8)

    def step(number):
        copied = x.clone()
        copied.add_(torch.randn(4, 8))

    assert repeated(step) == set()


def test_an_operator_of_somebody_else_may_have_written_to_what_it_was_given():
    library = torch.library.Library("kinetoscope_test_repeats", "DEF")
    library.define("touch(Tensor x) -> Tensor")
    library.impl("touch", lambda x: x.clone(), "CompositeExplicitAutograd")
    x = large()

    def step(number):
        torch.ops.kinetoscope_test_repeats.touch(x)
        x.exp()

    assert "aten::exp" not in {name for name, _ in repeated(step)}


def test_settings_that_are_no_arguments_tell_calls_apart():
    x, weight = torch.randn(4, 8), torch.randn(8, 8)

    def step(number):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number % 2 == 0):
            x @ weight

    assert ("aten::matmul", 1) not in repeated(step)


def test_what_was_not_recorded_may_have_changed_everything():
    x = large()
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=1)

    def step(number):
        x.exp()

    with kinetoscope.profile(tensor_versions=True, schedule=schedule, acc_events=True) as prof:
        for number in range(6):
            step(number)
            prof.step()
    joined = concatenate(prof.cycles)
    assert len(joined.columns("cycles")) == len(joined.columns("steps")) == 3
    assert not (repeats_of(joined).earlier_step >= 0).any()


def test_a_fill_that_is_overwritten_before_it_is_read_is_not_needed():
    rows, buffer = torch.randn(4, 8), torch.empty(4, 8)

    def step(number):
        torch.zeros(4, 8).copy_(torch.randn(4, 8))
        buffer.zero_()
        buffer.copy_(rows + number)

    assert repeated(step) == {("aten::zeros", "overwritten"), ("aten::zero_", "overwritten")}


def test_a_fill_that_is_read_or_kept_in_part_is_needed():
    rows = torch.randn(4, 8)

    def step(number):
        read = torch.zeros(4, 8)
        read.sum()
        read.copy_(rows + number)
        part = torch.zeros(8, 8)
        part[:4].copy_(rows + number)
        added = torch.zeros(4, 8)
        added.add_(rows + number)
        viewed = torch.zeros(4, 8)
        seen = viewed.view(8, 4)
        seen.exp()
        viewed.copy_(rows + number)

    assert {name for name, what in repeated(step) if what == "overwritten"} == set()


def test_gradients_that_are_filled_and_added_to_are_needed():
    model = layers()

    def step(number):
        model(torch.randn(4, 8)).sum().backward()
        for parameter in model.parameters():
            parameter.grad.zero_()

    assert repeated(step) == set()


def test_programs_that_use_a_device_claim_nothing():
    def claims(builder):
        shapes = builder.shapes([[4, 4], [4, 4]], ["float", "float"])
        for step in range(2):
            builder.step(step, step * 100, 100)
            builder.span(
                "aten::mm", step * 100, 10, shapes=shapes, reads=((1, 0), (2, 0)), makes=((3 + step, 0),)
            )
        return int((repeats_of(builder.build()).earlier_step >= 0).sum())

    cpu = {"type": "cpu", "index": -1, "name": "a processor"}
    assert claims(TraceBuilder().know("devices", [cpu])) == 1
    assert claims(TraceBuilder().know("devices", [cpu, {"type": "cuda", "index": 0, "name": "a GPU"}])) == 0
    builder = TraceBuilder()
    builder.stream(7)
    assert claims(builder) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_views_of_a_storage_that_was_freed_are_not_read(dtype):
    whole = torch.ones(64, 16, dtype=dtype)
    part = whole[32:]

    def step(number):
        whole.untyped_storage().resize_(0)
        part.view(-1)

    trace = recorded(step)
    versions = trace.columns("tensor_versions")
    is_view = trace.column("spans", "name")[versions["span"]] == trace.strings.index("aten::view")
    assert is_view.any()
    assert (versions["content"][is_view] == 0).all()


def test_views_of_tensors_that_stand_for_others_are_not_read():
    embedding, whole = torch.ones(10, 4), torch.zeros(16, 8, dtype=torch.int64)
    step = torch.func.functionalize(lambda indices: torch.nn.functional.embedding(indices[8:], embedding))
    trace = recorded(lambda number: step(whole))
    versions = trace.columns("tensor_versions")
    is_embedding = trace.column("spans", "name")[versions["span"]] == trace.strings.index("aten::embedding")
    assert is_embedding.any()
    assert (versions["content"][is_embedding & (versions["argument"] == 1)] == 0).all()


def test_a_trace_without_versions_claims_nothing():
    found = repeats_of(TraceBuilder().build())
    assert not any((rows >= 0).any() for rows in (found.same_step, found.earlier_step, found.overwritten_by))


def test_the_account_says_what_is_repeated_and_the_table_can_be_saved(tmp_path):
    x = torch.randn(256, 256)
    trace = recorded(lambda number: (x @ x, x @ x), 5, with_stack=True)
    path = tmp_path / "one.ktrace"
    trace.save(path)
    with kinetoscope.open(path) as again:
        assert (
            again.columns("tensor_versions")["storage"].tolist()
            == trace.columns("tensor_versions")["storage"].tolist()
        )
        causes = {row["cause"] for row in again.account().rows if row["entry"] == "not needed"}
    assert causes == {CAUSES[Cause.RECOMPUTED], CAUSES[Cause.UNCHANGED]}
