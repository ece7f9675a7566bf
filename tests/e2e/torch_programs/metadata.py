"""Metadata that a job adds."""

import json

import torch
import torch.profiler as P

with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
    torch.ones(1)
    prof.add_metadata("job", "nightly")
    prof.add_metadata_json("settings", json.dumps({"batch": 4, "names": ["a", "b"]}))
prof.export_chrome_trace("trace.json")
with open("trace.json") as file:
    trace = json.load(file)
print(trace["job"], trace["settings"])
