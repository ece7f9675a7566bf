"""An execution trace beside the timing trace."""

import json

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
inputs = torch.ones(4, 8)

observer = P.ExecutionTraceObserver().register_callback("execution.json")
print(observer.is_registered, observer.get_output_file_path())
with (
    P.profile(activities=[P.ProfilerActivity.CPU], execution_trace_observer=observer),
    P.record_function("forward"),
):
    model(inputs)
observer.unregister_callback()
print(observer.is_registered)
with open("execution.json") as file:
    trace = json.load(file)
print({"finish_ts", "nodes", "pid", "start_ts", "time"} <= set(trace), trace["schema"])
names = [node["name"] for node in trace["nodes"]]
print(names.count("aten::addmm"), names.count("forward"), names[0])
(node, *_) = [node for node in trace["nodes"] if node["name"] == "aten::addmm"]
print(sorted(node), node["inputs"]["shapes"], node["outputs"]["shapes"])
