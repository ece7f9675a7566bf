"""Slow programs on a CUDA device, written as users write them, each with a mended twin: see `benchmarks.blind_sources` for the format."""

from benchmarks.blind_sources import BlindProgram

_LAYERS = """
  import math

  import torch
  from torch import nn
  from torch.nn import functional

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")


  class Mlp(nn.Module):
      def __init__(self, width, layers, classes=10):
          super().__init__()
          self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
          self.head = nn.Linear(width, classes)

      def forward(self, x):
          for layer in self.layers:
              x = functional.relu(layer(x))
          return self.head(x)


"""

DEVICE_PROGRAMS = (
    BlindProgram(
        name="loss_read_each_step",
        kind="the loss is read on the host in every step, so that the device runs dry",
        cause=r"\.item\(\)|read|value|wait",
        text=_LAYERS
        + """
  model = Mlp(4096, 12).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(4096, 4096, device=device)
  y = torch.randint(10, (4096,), device=device)
- total = 0.0
+ total = torch.zeros((), device=device)


  def step(index):
      global total
      for _ in range(4):
          loss = functional.cross_entropy(model(x), y)
          loss.backward()
          optimizer.step()
          optimizer.zero_grad()
!         total += loss.item()
+         total += loss.detach()
      return total
""",
    ),
    BlindProgram(
        name="pageable_batches",
        kind="batches go to the device from memory that is not pinned, and the loop waits for each copy",
        cause=r"pin|copy|copies|non_blocking",
        text=_LAYERS
        + """
  model = Mlp(4096, 4).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  batches = [torch.randn(4096, 4096) for _ in range(3)]
+ batches = [batch.pin_memory() for batch in batches]
  y = torch.randint(10, (4096,), device=device)


  def step(index):
!     x = batches[index % 3].to(device)
+     x = batches[index % 3].to(device, non_blocking=True)
      loss = functional.cross_entropy(model(x), y)
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="mask_from_host",
        kind="an attention mask is made on the host and copied in every layer",
        cause=r"cop(y|ies)|host|every (step|call)|each (step|call)|same (result|value)|pin",
        modules=r"\d+",
        text="""
  import torch
  from torch import nn
  from torch.nn import functional

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")


  class Block(nn.Module):
      def __init__(self, width):
          super().__init__()
          self.qkv = nn.Linear(width, 3 * width)
          self.out = nn.Linear(width, width)
+         self.register_buffer("mask", torch.tril(torch.ones(1024, 1024, dtype=torch.bool)))

      def forward(self, x):
          batch, length, width = x.shape
          q, k, v = (part.view(batch, length, 8, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
!         mask = torch.tril(torch.ones(length, length, dtype=torch.bool)).to(x.device)
+         mask = self.mask[:length, :length]
          y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
          return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


  model = nn.Sequential(*(Block(512) for _ in range(8))).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(4, 1024, 512, device=device)


  def step(index):
      loss = model(x).square().mean()
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="float32_products",
        kind="large products in float32 without tensor cores",
        cause=r"tf32|tensor cores|precision|bfloat16|autocast",
        same="kind",
        text=_LAYERS
        + """
! torch.set_float32_matmul_precision("highest")
  model = Mlp(4096, 6).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(4096, 4096, device=device)
  y = torch.randint(10, (4096,), device=device)


  def step(index):
*     loss = functional.cross_entropy(model(x), y)
*     loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
        modules=r"layers|\d+",
    ),
    BlindProgram(
        name="head_by_head",
        kind="attention computes one head after the other, with kernels that last next to nothing",
        cause=r"small|short|tiny|launch|batch|one (call|operator)|many",
        modules=r"attention",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")


  class Attention(nn.Module):
      def __init__(self, width, heads):
          super().__init__()
          self.heads = heads
          self.qkv = nn.Linear(width, 3 * width)

      def forward(self, x):
          batch, length, width = x.shape
          q, k, v = self.qkv(x).chunk(3, -1)
          size = width // self.heads
-         found = []
-         for head in range(self.heads):
-             part = slice(head * size, (head + 1) * size)
!             scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
!             found.append(scores.softmax(-1) @ v[..., part])
-         return torch.cat(found, -1)
+         q, k, v = (one.view(batch, length, self.heads, size).transpose(1, 2) for one in (q, k, v))
+         scores = q @ k.transpose(2, 3) / size**0.5
+         return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.attention = Attention(512, 16)
          self.out = nn.Linear(512, 512)

      def forward(self, x):
          for _ in range(3):
*             x = x + self.out(self.attention(x))
          return x


  model = Net().to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(4, 128, 512, device=device)


  def step(index):
      loss = model(x).square().mean()
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="cache_emptied",
        kind="the allocator's cache is emptied in every step",
        cause=r"empty_cache|cudaMalloc|cudaFree|allocat|cache",
        text=_LAYERS
        + """
  model = Mlp(2048, 8).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(8192, 2048, device=device)
  y = torch.randint(10, (8192,), device=device)


  def step(index):
      loss = functional.cross_entropy(model(x), y)
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
!     torch.cuda.empty_cache()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="synchronize_after_layers",
        kind="a person who measured layers left the synchronizations in",
        cause=r"synchroni",
        text="""
  import torch
  from torch import nn
  from torch.nn import functional

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(60))

      def forward(self, x):
          for layer in self.layers:
              x = functional.relu(layer(x))
!             torch.cuda.synchronize()
          return x


  model = Net().to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(4096, 256, device=device)


  def step(index):
      loss = model(x).square().mean()
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="attention_by_hand",
        kind="attention writes its scores to memory where one fused kernel exists",
        cause=r"scaled_dot_product_attention|fus|memory-bound|elementwise|one kernel",
        modules=r"block.*|\d+|layers.*",
        text="""
  import torch
  from torch import nn
  from torch.nn import functional

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")


  class Block(nn.Module):
      def __init__(self, width):
          super().__init__()
          self.qkv = nn.Linear(width, 3 * width)
          self.out = nn.Linear(width, width)

      def forward(self, x):
          batch, length, width = x.shape
          q, k, v = (part.view(batch, length, 16, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
!         scores = q @ k.transpose(2, 3) / (width // 16) ** 0.5
!         y = scores.softmax(-1) @ v
+         y = functional.scaled_dot_product_attention(q, k, v)
          return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


  model = nn.Sequential(*(Block(1024) for _ in range(4))).to(device, torch.bfloat16)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(8, 2048, 1024, device=device, dtype=torch.bfloat16)


  def step(index):
      loss = model(x).square().mean()
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="optimizer_one_by_one",
        kind="the optimizer updates one parameter after the other",
        cause=r"foreach|fused|optimizer",
        text=_LAYERS
        + """
  model = Mlp(256, 80).to(device)
- optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, foreach=False)
+ optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
  x = torch.randn(1024, 256, device=device)
  y = torch.randint(10, (1024,), device=device)


  def step(index):
      loss = functional.cross_entropy(model(x), y)
      loss.backward()
*     optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="selection_by_mask",
        kind="rows are selected by a mask, and the host waits to learn how many there are",
        cause=r"nonzero|mask|wait|synchroni|read",
        text=_LAYERS
        + """
  model = Mlp(256, 4).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(1024, 256, device=device)
  y = torch.randint(10, (1024,), device=device)


  def step(index):
      total = torch.zeros((), device=device)
      logits = model(x)
      for label in range(10):
          mask = y == label
!         total = total + functional.cross_entropy(logits[mask], y[mask], reduction="sum") / 1024
+         each = functional.cross_entropy(logits, y, reduction="none")
+         total = total + torch.where(mask, each, 0.0).sum() / 1024
      total.backward()
      optimizer.step()
      optimizer.zero_grad()
      return total
""",
    ),
    BlindProgram(
        name="norms_read_one_by_one",
        kind="gradients are clipped by norms that are read one by one",
        cause=r"\.item\(\)|read|value|wait|clip",
        text=_LAYERS
        + """
  model = Mlp(512, 40).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(1024, 512, device=device)
  y = torch.randint(10, (1024,), device=device)


  def step(index):
      loss = functional.cross_entropy(model(x), y)
      loss.backward()
-     total = 0.0
-     for parameter in model.parameters():
!         total += parameter.grad.norm().item() ** 2
-     if math.sqrt(total) > 1.0:
-         for parameter in model.parameters():
-             parameter.grad.mul_(1.0 / math.sqrt(total))
+     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="predictions_to_host",
        kind="predictions are fetched in every step for a metric that is computed on the host",
        cause=r"cop(y|ies)|host|wait|read|cpu\(\)",
        text=_LAYERS
        + """
  model = Mlp(1024, 4, classes=4000).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
  x = torch.randn(4096, 1024, device=device)
  y = torch.randint(4000, (4096,), device=device)
- right = 0
+ right = torch.zeros((), device=device)
- labels = y.cpu()


  def step(index):
      global right
      logits = model(x)
      loss = functional.cross_entropy(logits, y)
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
!     right += int((logits.detach().cpu().argmax(1) == labels).sum())
+     right += (logits.detach().argmax(1) == y).sum()
      return right
""",
    ),
    BlindProgram(
        name="doubles_by_accident",
        kind="a scale from NumPy makes all that follows double precision",
        cause=r"double|float64|precision",
        same="kind",
        text="""
  import numpy
  import torch
  from torch import nn

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")
- scale = torch.from_numpy(numpy.linspace(0.9, 1.1, 2048)).to(device)
+ scale = torch.from_numpy(numpy.linspace(0.9, 1.1, 2048)).float().to(device)
  weights = [torch.randn(2048, 2048, device=device) / 45 for _ in range(8)]


  def step(index):
      x = torch.ones(2048, 2048, device=device) * scale
      for weight in weights:
*         x = torch.tanh(x @ weight.to(x.dtype))
      return x.sum()
""",
    ),
    BlindProgram(
        name="gelu_by_hand",
        kind="an activation of many elementwise kernels, each of which reads and writes everything",
        cause=r"elementwise|fus|compile|memory-bound|one kernel",
        modules=r"gelu|act.*",
        text="""
  import math

  import torch
  from torch import nn
  from torch.nn import functional

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")


  def gelu(x):
!     inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))
!     return 0.5 * x * (1 + torch.tanh(inner))
+     return functional.gelu(x, approximate="tanh")


  first = nn.Linear(256, 8192, device=device, dtype=torch.bfloat16)
  second = nn.Linear(8192, 256, device=device, dtype=torch.bfloat16)
  x = torch.randn(16384, 256, device=device, dtype=torch.bfloat16)


  def step(index):
*     loss = second(gelu(first(x))).float().square().mean()
      loss.backward()
      first.zero_grad()
      second.zero_grad()
      return loss
""",
    ),
    BlindProgram(
        name="growing_cache",
        kind="generation concatenates its key and value cache in every step",
        cause=r"cat|concat|cop|alloc|grow",
        modules=r"cache",
        text="""
  import torch
  from torch.nn import functional

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")
  LENGTH = 2048
  weight = torch.randn(1024, 3072, device=device, dtype=torch.float16) / 32


  @torch.no_grad()
  def step(index):
      x = torch.ones(16, 1, 1024, device=device, dtype=torch.float16)
-     keys = torch.ones(16, 8, LENGTH, 128, device=device, dtype=torch.float16)
-     values = torch.ones(16, 8, LENGTH, 128, device=device, dtype=torch.float16)
+     keys = torch.ones(16, 8, LENGTH + 24, 128, device=device, dtype=torch.float16)
+     values = torch.ones(16, 8, LENGTH + 24, 128, device=device, dtype=torch.float16)
      for position in range(24):
          q, k, v = (part.view(16, 1, 8, 128).transpose(1, 2) for part in (x @ weight).chunk(3, -1))
!         keys = torch.cat((keys, k), 2)
!         values = torch.cat((values, v), 2)
-         y = functional.scaled_dot_product_attention(q, keys, values)
+         until = LENGTH + position + 1
+         keys[:, :, until - 1 : until] = k
+         values[:, :, until - 1 : until] = v
+         y = functional.scaled_dot_product_attention(q, keys[:, :, :until], values[:, :, :until])
          x = y.transpose(1, 2).reshape(16, 1, 1024)
      return x.float().sum()
""",
    ),
    BlindProgram(
        name="everything_recomputed",
        kind="every layer is checkpointed where memory is plenty",
        cause=r"recomput|checkpoint",
        modules=r"layers.*|\d+",
        text="""
  import torch
  from torch import nn
  from torch.utils.checkpoint import checkpoint

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = torch.device("cuda")
  layers = nn.ModuleList(
      nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(6)
  ).to(device, torch.bfloat16)
  optimizer = torch.optim.SGD(layers.parameters(), lr=0.01, fused=True)
  x = torch.randn(16, 512, 512, device=device, dtype=torch.bfloat16)


  def step(index):
      y = x
      for layer in layers:
!         y = checkpoint(layer, y, use_reentrant=False)
+         y = layer(y)
      loss = y.float().square().mean()
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      return loss
""",
    ),
)
