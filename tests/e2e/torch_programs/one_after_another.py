"""Many sessions, each with its own events; one session used twice."""

import torch
import torch.profiler as P

counts = []
for number in range(1, 4):
    with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
        for _ in range(number):
            torch.ones(2)
    counts.append([event.name for event in prof.events()].count("aten::ones"))
print(counts)
prof = P.profile(activities=[P.ProfilerActivity.CPU])
for number in (1, 2):
    prof.start()
    for _ in range(number):
        torch.zeros(2)
    prof.stop()
    print([event.name for event in prof.events()].count("aten::zeros"))
