"""The session without a schedule, called by hand."""

import torch
import torch.profiler as P

prof = P._KinetoProfile(activities=[P.ProfilerActivity.CPU], record_shapes=True)
prof.prepare_trace()
prof.start_trace()
torch.ones(2) + 1
prof.stop_trace()
print([(event.name, event.input_shapes) for event in prof.events()])
prof.export_chrome_trace("low.json")
print(isinstance(P.profile(activities=[P.ProfilerActivity.CPU]), P._KinetoProfile))
