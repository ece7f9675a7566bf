"""Memory of real programs: the example models have a category and a module for what they hold, and totals are true."""

import gc
import gzip
import json
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch", reason="what is recorded are torch programs")

import torch
from torch import nn
from torch.profiler._memory_profiler import Action, Category, MemoryProfileTimeline

import kinetoscope
from kinetoscope.examples import train_convnet, train_gpt
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, MemoryCategory, judged_blocks
from kinetoscope.tables.memory.peak import live_at, peak
from tests.support.programs import PROGRAMS, Transformer
from tests.support.recorded import CPU, profile

GPT = ["--steps", "3", "--batch", "8", "--context", "32", "--width", "64", "--layers", "2"]
CONVNET = ["--steps", "3", "--batch", "16", "--pixels", "16", "--channels", "8", "--images", "256"]


@pytest.fixture(autouse=True)
def nothing_of_other_tests():
    """Hides what the tests before it left from Python's collector, and so from the look at what was there before."""
    gc.collect()
    gc.freeze()


def at_peak(trace):
    """The bytes of each category at the peak, those without a category or a module, and all."""
    judged, top = judged_blocks(trace), peak(trace)
    live = live_at(trace, top)
    size, category, module = judged.blocks.bytes[live], judged.category[live], judged.module[live]
    held = {name: int(size[category == place].sum()) for place, name in enumerate(CATEGORY_NAMES)}
    lacking = (category == MemoryCategory.UNKNOWN) | (module < 0)
    return held, int(size[lacking].sum()), top.bytes


@pytest.mark.parametrize("shapes", [False, True], ids=["memory alone", "with shapes"])
@pytest.mark.parametrize(("program", "arguments"), [(train_gpt, GPT), (train_convnet, CONVNET)], ids=["gpt", "convnet"])  # fmt: skip
def test_of_the_examples_95_percent_at_the_peak_have_a_category_and_a_module(
    program, arguments, shapes, capsys
):
    with profile(profile_memory=True, record_shapes=shapes) as prof:
        program.main(arguments)
    held, lacking, total = at_peak(prof.trace)
    assert sum(held.values()) == total
    assert lacking <= 0.05 * total, held
    for category in ("parameter", "optimizer state", "activation"):
        assert held[category] > 0


def test_the_same_holds_when_only_the_last_steps_are_recorded():
    model = Transformer(layers=2)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(64).view(4, 16)

    def step():
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    with profile(profile_memory=True) as prof:
        step()
        step()
    held, lacking, total = at_peak(prof.trace)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert held["parameter"] == parameters
    assert held["gradient"] <= parameters
    state = sum(
        tensor.nbytes
        for values in optimizer.state.values()
        for tensor in values.values()
        if isinstance(tensor, torch.Tensor)
    )
    assert held["optimizer state"] == state
    # Tensors of other tests may live on in this process; they have no part in this model.
    judged = judged_blocks(prof.trace)
    mine = judged.blocks.allocation[live_at(prof.trace, peak(prof.trace))] >= 0
    assert mine.any()
    assert lacking <= 0.05 * total + _older_bytes(prof.trace)


def _older_bytes(trace):
    """Bytes from before the recording that no module holds."""
    judged = judged_blocks(trace)
    older = (judged.blocks.allocation < 0) & (judged.module < 0)
    return int(judged.blocks.bytes[older].sum())


def replayed(timeline, categories):
    """What a timeline of torch's form holds: the peak, the categories at it, and each category's largest sum."""
    live, total, highest, at_highest, largest = Counter(), 0, 0, {}, Counter()
    for _, action, (key, version), size in timeline:
        category = categories.get(key, version)
        if action in (Action.PREEXISTING, Action.CREATE):
            live[category] += size
            total += size
        elif action is Action.DESTROY:
            live[category] -= size
            total -= size
        else:
            live[category] -= size
            live[categories.get(key, version + 1)] += size
        assert total >= 0
        largest = Counter({name: max(largest[name], live[name]) for name in live | largest})
        if total > highest:
            highest, at_highest = total, Counter(live)
    return highest, at_highest, largest


def theirs_and_ours(step):
    with torch.profiler.profile(
        activities=CPU, profile_memory=True, record_shapes=True, with_stack=True
    ) as prof:
        step()
        step()
    their = prof._memory_profile()
    with profile(profile_memory=True, record_shapes=True) as prof:
        step()
        step()
    our = prof._memory_profile()
    return replayed(their.timeline, their._categories), replayed(our.timeline, our._categories)


@pytest.mark.parametrize("name", ["mlp_training", "transformer_training", "convolutional_training", "recurrent_training"])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_gradients_and_optimizer_state_are_those_of_torchs_own_analysis(name):
    step = PROGRAMS[name]()
    step()
    (_, _, their_largest), (_, _, our_largest) = theirs_and_ours(step)
    assert our_largest[Category.OPTIMIZER_STATE] == their_largest[Category.OPTIMIZER_STATE]
    assert our_largest[Category.GRADIENT] == their_largest[Category.GRADIENT]
    # torch also calls parameters what is computed from them and gradients outside backward (the optimizer's sums).
    assert 0 < our_largest[Category.PARAMETER] <= their_largest[Category.PARAMETER] + 48


def test_torchs_own_writer_of_timelines_accepts_our_profile_and_agrees_with_ours(tmp_path):
    step = PROGRAMS["mlp_training"]()
    with profile(profile_memory=True, record_shapes=True) as prof:
        step()
    # torch divides times as floating-point numbers, which those since 1970 are too large for.
    prof.trace.info["start_realtime_ns"] = 0
    timeline = MemoryProfileTimeline(prof._memory_profile())
    timeline.export_memory_timeline(str(tmp_path / "theirs.json"), "cpu")
    timeline.export_memory_timeline_raw(str(tmp_path / "theirs.raw.json"), "cpu")
    prof.export_memory_timeline(tmp_path / "ours.json")
    prof.export_memory_timeline(str(tmp_path / "ours.raw.json.gz"), device="cpu")
    their_times, their_sizes = json.loads((tmp_path / "theirs.json").read_text())
    our_times, our_sizes = json.loads((tmp_path / "ours.json").read_text())
    # Changes of content are points of torch's timeline even where no size changes.
    at = np.searchsorted(their_times, our_times, side="right") - 1
    assert set(our_times) <= set(their_times)
    assert [their_sizes[place] for place in at[1:]] == our_sizes[1:]
    theirs = json.loads((tmp_path / "theirs.raw.json").read_text())
    ours = json.loads(gzip.decompress((tmp_path / "ours.raw.json.gz").read_bytes()))
    assert Counter(map(tuple, theirs)) == Counter(map(tuple, ours))
    assert {row[1] for row in ours} == {1, 2, 3, 4}


def test_a_timeline_has_torchs_own_kinds_of_things():
    with profile(profile_memory=True) as prof:
        torch.ones(10)
    memory = prof._memory_profile()
    time_ns, action, (key, version), size = memory.timeline[-1]
    assert action is Action.DESTROY
    assert (version, size) == (0, 40)
    assert time_ns > 10**18
    assert key.device == torch.device("cpu")
    assert memory.categories[key] in (Category.TEMPORARY, Category.INPUT)
    assert all((time < 0) == (action is Action.PREEXISTING) for time, action, _, _ in memory.timeline)


def test_without_profile_memory_the_missing_flag_is_named(tmp_path):
    with profile() as prof:
        torch.ones(10)
    for ask in (prof._memory_profile, lambda: prof.export_memory_timeline(tmp_path / "memory.html")):
        # A ValueError, as in torch.
        with pytest.raises(kinetoscope.ArgumentError, match="profile_memory=True"):
            ask()


def test_frees_of_memory_from_before_never_make_a_total_negative():
    older = [torch.ones(1000) for _ in range(50)]
    with profile(profile_memory=True) as prof:
        while older:
            older.pop()
            torch.ones(10)
    assert (prof.trace.column("allocations", "total_bytes") >= 0).all()
    totals = prof.trace.table("memory_timeline").column("total_bytes").to_numpy()
    assert (totals >= 0).all()
    assert totals.max() - totals[-1] >= 49 * 4000


@pytest.mark.parametrize(
    "options",
    [
        {"python_calls": True, "module_spans": True},
        {"engine": "kineto"},
        {"engine": "kineto", "with_stack": True, "record_shapes": True},
    ],
    ids=str,
)
def test_categories_do_not_depend_on_what_else_is_recorded_or_by_whom(options):
    step = PROGRAMS["transformer_training"]()
    step()

    def recorded_bytes(**more):
        with kinetoscope.profile(activities=CPU, profile_memory=True, **{"engine": "native", **more}) as prof:
            step()
        judged = judged_blocks(prof.trace)
        return {
            name: int(judged.blocks.bytes[(judged.category == place) & (judged.blocks.allocation >= 0)].sum())
            for place, name in enumerate(CATEGORY_NAMES)
        }

    alone = recorded_bytes()
    assert alone["gradient"] > alone["activation"] > 100_000
    assert recorded_bytes(**options) == alone
