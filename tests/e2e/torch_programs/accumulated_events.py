"""Events of all cycles of a schedule."""

import torch
import torch.profiler as P

for keep in (False, True):
    with P.profile(
        activities=[P.ProfilerActivity.CPU],
        schedule=P.schedule(wait=0, warmup=1, active=1, repeat=3),
        on_trace_ready=lambda prof: prof.events(),
        acc_events=keep,
    ) as prof:
        for _ in range(6):
            torch.ones(1)
            prof.step()
    print(keep, [event.name for event in prof.events()].count("aten::ones"))
    print([(event.key, event.count) for event in prof.key_averages() if event.key == "aten::ones"])
