"""A compressed trace, and one exported twice."""

import gzip
import json

import torch
import torch.profiler as P

with P.profile(activities=[P.ProfilerActivity.CPU]) as prof:
    torch.ones(3) + 1
prof.export_chrome_trace("trace.json.gz")
with gzip.open("trace.json.gz") as file:
    names = [event["name"] for event in json.load(file)["traceEvents"]]
print(names.count("aten::add"))
prof.events().export_chrome_trace("again.json")
with open("again.json") as file:
    print("aten::add" in file.read())
