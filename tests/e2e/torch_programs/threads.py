"""A profiler in the main thread while others work; each thread's events are told apart."""

import threading

import torch
import torch.profiler as P


def work(x):
    with P.record_function("in a thread"):
        return x.exp().sum()


with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
    with P.record_function("main"):
        work(torch.ones(3))
    thread = threading.Thread(target=work, args=(torch.ones(3),))
    thread.start()
    thread.join()
(main,) = {event.thread for event in prof.events() if event.name == "main"}
print([event.name for event in prof.events() if event.thread == main])
