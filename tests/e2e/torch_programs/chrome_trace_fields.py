"""What programs that read traces look up in them."""

import json

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.ones(4, 8)


def train_step():
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()


train_step()

with (
    P.profile(activities=[P.ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as prof,
    P.record_function("my range"),
):
    train_step()
prof.export_chrome_trace("trace.json")
with open("trace.json") as file:
    trace = json.load(file)
print(trace["schemaVersion"], trace["record_shapes"], trace["profile_memory"], "baseTimeNanoseconds" in trace)
events = trace["traceEvents"]
slices = [event for event in events if event["ph"] == "X"]
operators = [event for event in slices if event.get("cat") == "cpu_op"]
print(len(operators), sorted({event.get("cat") for event in slices} - {"Trace", "python_function"}))
print(all({"name", "ts", "dur", "pid", "tid", "args"} <= set(event) for event in operators))
print(all("External id" in event["args"] for event in operators))
print(len({event["args"]["External id"] for event in operators}) == len(operators))
(linear, *_) = [event for event in operators if event["name"] == "aten::addmm"]
print(linear["args"]["Input Dims"], linear["args"]["Input type"], "Concrete Inputs" in linear["args"])
backward = [
    event for event in operators if "Fwd thread id" in event["args"] and event["name"] == "AddmmBackward0"
]
print(len(backward), all(event["args"]["Sequence number"] >= 0 for event in backward))
print(
    [
        event["name"]
        for event in slices
        if event.get("cat") == "user_annotation" and event["name"] == "my range"
    ]
)
arrows = [event for event in events if event.get("cat") == "fwdbwd"]
print(len(arrows) > 0, sorted({event["ph"] for event in arrows}))
memory = [event for event in events if event["name"] == "[memory]"]
print(len(memory) > 0, {"Addr", "Bytes", "Device Type", "Total Allocated"} <= set(memory[0]["args"]))
names = {event["name"] for event in events if event["ph"] == "M"}
print({"process_name", "process_labels", "thread_name"} <= names)
inside = [
    one
    for one in operators
    if linear["ts"] < one["ts"] and one["ts"] + one["dur"] <= linear["ts"] + linear["dur"]
]
print(sorted(event["name"] for event in inside))
