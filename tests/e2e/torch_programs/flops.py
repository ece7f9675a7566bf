"""FLOPs of matrix products and convolutions."""

import torch
import torch.profiler as P

weights, images = torch.ones(6, 5), torch.ones(2, 3, 8, 8)
convolution = torch.nn.Conv2d(3, 4, 3, bias=False)
with P.profile(activities=[P.ProfilerActivity.CPU], with_flops=True, record_shapes=True) as prof:
    torch.mm(torch.ones(7, 6), weights)
    torch.addmm(torch.ones(5), torch.ones(7, 6), weights)
    with torch.no_grad():
        convolution(images)
    torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5))
found = {event.key: event.flops for event in prof.key_averages()}
print([found[name] for name in ("aten::mm", "aten::bmm")])
print("FLOPs" in prof.key_averages().table(), sum(found.values()) > 0)
