"""What is refused, and as which kind of error."""

import torch
import torch.profiler as P


def attempt(what):
    try:
        what()
    except Exception as error:
        # torch asserts where we raise ValueError; programs catch either.
        kinds = {AssertionError: "bad value", ValueError: "bad value", RuntimeError: "bad state"}
        return next((kind for cause, kind in kinds.items() if isinstance(error, cause)), type(error).__name__)
    return "fine"


print(attempt(lambda: P.schedule(wait=-1, warmup=1, active=1)))
print(attempt(lambda: P.schedule(wait=0, warmup=1, active=0)))
# torch took no activities for all of them until it began to refuse that.
print(attempt(lambda: P.profile(activities=[])) in ("bad value", "fine"))
print(attempt(lambda: P.profile(activity=[P.ProfilerActivity.CPU])))
prof = P.profile(activities=[P.ProfilerActivity.CPU])
print(attempt(lambda: prof.export_chrome_trace("early.json")) in ("bad value", "bad state"))
print(attempt(prof.key_averages) in ("bad value", "bad state"))
with P.profile(activities=[P.ProfilerActivity.CPU]) as done:
    torch.ones(1)
print(attempt(lambda: done.key_averages().table(sort_by="nothing")) in ("bad value", "AttributeError"))
print(attempt(lambda: done.key_averages().table(time_unit="weeks")) in ("bad value", "fine"))
print(
    attempt(lambda: done.export_chrome_trace("no/such/folder/trace.json"))
    in ("bad state", "FileNotFoundError", "fine")
)
