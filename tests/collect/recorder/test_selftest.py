"""The recorder's check of itself, in programs that do other things meanwhile."""

import threading

import torch

from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.recorder.selftest import FEATURES, check_recorder


def test_operators_of_other_threads_are_not_taken_for_its_own() -> None:
    recorder = load_recorder()
    ended, x = threading.Event(), torch.ones(1)

    def multiply() -> None:
        while not ended.is_set():
            torch.ops.aten.mul.Scalar(x, 2)

    threads = [threading.Thread(target=multiply) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        found = [check_recorder(recorder) for _ in range(5)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert found == [dict.fromkeys(FEATURES, "")] * 5
