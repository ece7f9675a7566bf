"""A session that lives in a thread of its own."""

import threading

import torch
import torch.profiler as P


def job(found):
    with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
        torch.ones(2).cos()
    me = [event for event in prof.events() if event.name == "aten::cos"]
    found.append((len(me), sorted({event.key for event in prof.key_averages()})))


found = []
thread = threading.Thread(target=job, args=(found,))
thread.start()
thread.join()
print(found)
