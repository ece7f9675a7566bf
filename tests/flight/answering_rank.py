"""A rank of a job for `test_other_ranks`: left on, it does what each line of its input says, and answers with a line."""

import os
import sys

import torch

import kinetoscope

torch.set_num_threads(1)
if os.environ["MASTER_PORT"] != "0":
    torch.distributed.init_process_group("gloo")
recorder = kinetoscope.leave_on(keep="4MiB", on=("nan", "hang"))
recorder._follow_plan = lambda *_: None
recorder._plan.records = lambda step: True
recorder._others.answer_s = 2.0
model = torch.nn.Linear(8, 8)
recorder.step(0)
print("ready", flush=True)
for line in sys.stdin:
    model(torch.ones(2, 8)).sum().backward()
    if line == "step\n":
        recorder.step()
        print(recorder._count.number, flush=True)
    elif line == "nan\n":
        recorder.step(loss=float("nan"))
        print("told", flush=True)
    elif line == "stop\n":
        recorder.stop()
        print("stopped", flush=True)
