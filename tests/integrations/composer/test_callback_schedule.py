from types import SimpleNamespace

import pytest

from kinetoscope.integrations.composer import ProfilerAction, Timestamp, cyclic_schedule

LETTERS = {
    ProfilerAction.SKIP: ".",
    ProfilerAction.WARMUP: "w",
    ProfilerAction.ACTIVE: "A",
    ProfilerAction.ACTIVE_AND_SAVE: "S",
}


def actions(schedule, batches, *, epochs=1, **state):
    """What a schedule wants for each batch of each epoch, a letter for each."""
    return " ".join(
        "".join(
            LETTERS[
                schedule(SimpleNamespace(timestamp=Timestamp(epoch=epoch, batch_in_epoch=batch), **state))
            ]
            for batch in range(batches)
        )
        for epoch in range(epochs)
    )


def test_the_defaults_are_one_cycle_of_a_warm_up_and_four_batches():
    assert actions(cyclic_schedule(), 8, epochs=2, dataloader_len=8, profiler=None) == "wAAAS... wAAAS..."


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ({"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}, "...wAS.wAS.."),
        ({"wait": 1, "warmup": 0, "active": 1, "repeat": 0}, ".S.S.S.S.S.S"),
        ({"warmup": 0, "active": 1, "repeat": 0}, "SSSSSSSSSSSS"),
        ({"warmup": 1, "active": 3, "repeat": 0}, "wAASwAASwAAS"),
        ({"skip_first": 20}, "............"),
    ],
)
def test_cycles(numbers, wanted):
    assert actions(cyclic_schedule(**numbers), 12) == wanted


def test_the_last_batch_of_an_epoch_ends_the_cycle():
    schedule = cyclic_schedule(warmup=1, active=4, repeat=0)
    assert actions(schedule, 7, dataloader_len=7) == "wAAASwS"
    assert actions(schedule, 7, dataloader_len=None) == "wAAASwA"


def test_a_run_that_was_resumed_skips_what_was_over():
    resumed = SimpleNamespace(resumption_batch_idx=3)
    assert actions(cyclic_schedule(skip_first=1, active=2), 9, profiler=resumed) == "....wAS.."
