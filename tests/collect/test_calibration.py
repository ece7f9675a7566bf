"""The measuring of this machine."""

import itertools
import json

import torch

import kinetoscope
from kinetoscope.collect import calibrate
from kinetoscope.tables.costs.attainable import rates_of


def test_recordings_take_a_calibration_along(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    # By this clock the time is up after some of the workloads.
    ticks = itertools.count()
    path, threads = calibrate(longest_s=400.0, now_s=lambda: float(next(ticks)))
    assert path.parent == tmp_path
    assert threads == torch.get_num_threads()
    curves = json.loads(path.read_text())
    assert {"call", "stream", "matmul float32", "convolution float32"} <= curves.keys()
    with kinetoscope.profile(record_shapes=True) as prof:
        torch.ones(10) * 2
    assert rates_of(prof.trace).is_calibrated
    assert rates_of(prof.trace).call_ns == curves["call"][0][1]
