"""Slow programs that were written without reading Kinetoscope's rules, each with a mended twin.

Each program is one source text in the manner of a diff. The first two characters of a line say where it belongs:

- ``"- "``: the slow program only
- ``"! "``: the slow program only, and a line that a person should be led to
- ``"* "``: both, and a line that a person should be led to (a call of the slow code)
- ``"+ "``: the mended twin only
- two spaces: both

A program defines ``step(index)``, which returns what the step computed; the twin's must return the same.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

PREFIXES = {
    "- ": ("slow",),
    "! ": ("slow",),
    "* ": ("slow", "mended"),
    "+ ": ("mended",),
    "  ": ("slow", "mended"),
}


@dataclass(frozen=True)
class BlindProgram:
    """A slow program and its twin: what is wrong in it, and how a finding would say so."""

    name: str
    kind: str
    cause: str  # regular expression of the words that name the cause, any case
    text: str
    modules: str = ""  # regular expression of module paths that are as good as the line; none if empty
    same: Literal["equal", "close", "kind"] = "close"  # how the twin's results compare; "kind": random draws

    def source(self, side: Literal["slow", "mended"]) -> str:
        """The program's source text, of the slow one or of its twin."""
        return "".join(line for line, _ in self._lines(side))

    @cached_property
    def places(self) -> frozenset[int]:
        """The line numbers of the slow program that a person should be led to."""
        return frozenset(number for number, (_, here) in enumerate(self._lines("slow"), 1) if here)

    def _lines(self, side: Literal["slow", "mended"]) -> list[tuple[str, bool]]:
        found = []
        for line in self.text.strip("\n").splitlines(keepends=True):
            prefix = (line.rstrip("\n") + "  ")[:2]
            # Of an empty line that only one of both has, nothing is left.
            if side in PREFIXES[prefix] and (text := line[2:] if line.strip() else "\n"):
                found.append((text, prefix in ("! ", "* ")))
        return found


PROGRAMS = (
    BlindProgram(
        name="mask_in_forward",
        kind="a causal mask and positions built in Python in every forward pass",
        cause=r"every (step|call|forward)|each (step|call|forward)|same (result|value|tensor)|constant|cache|buffer|small (operators|ops|calls)|python|loop",
        modules=r"positions",
        text="""
  import math

  import torch
  from torch import nn

  torch.manual_seed(0)


  class Positions(nn.Module):
      def __init__(self, width):
          super().__init__()
          self.width = width
+         self.register_buffer("table", self.build(96))

-     def forward(self, x):
+     def build(self, length):
-         table = torch.zeros(x.size(1), self.width)
+         table = torch.zeros(length, self.width)
-         for position in range(x.size(1)):
+         for position in range(length):
              for column in range(0, self.width, 16):
                  angle = position / math.pow(10000, column / self.width)
*                 table[position, column : column + 8] = math.sin(angle)
*                 table[position, column + 8 : column + 16] = math.cos(angle)
-         return x + table
+         return table
+
+     def forward(self, x):
+         return x + self.table[: x.size(1)]


  class Classifier(nn.Module):
      def __init__(self):
          super().__init__()
          self.embed = nn.Embedding(500, 64)
          self.positions = Positions(64)
          self.encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
          self.head = nn.Linear(64, 10)

      def forward(self, tokens):
*         hidden = self.positions(self.embed(tokens))
          return self.head(self.encoder(hidden).mean(1))


  model = Classifier()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  tokens = torch.randint(500, (8, 96))
  labels = torch.randint(10, (8,))


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.cross_entropy(model(tokens), labels)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="double_from_numpy",
        kind="float64 because the features came from numpy",
        cause=r"float64|double",
        modules=r".*",
        text="""
  import numpy
  import torch
  from torch import nn

  torch.manual_seed(0)
  rng = numpy.random.default_rng(0)
  features = rng.normal(size=(2048, 300))
  targets = features[:, :4].sum(1, keepdims=True)
  model = nn.Sequential(nn.Linear(300, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
! model = model.double()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


  def step(index):
      rows = slice((index * 128) % 2048, (index * 128) % 2048 + 128)
!     x = torch.from_numpy(features[rows])
!     y = torch.from_numpy(targets[rows])
+     x = torch.from_numpy(features[rows]).float()
+     y = torch.from_numpy(targets[rows]).float()
      optimizer.zero_grad()
*     loss = nn.functional.mse_loss(model(x), y)
*     loss.backward()
      optimizer.step()
      return loss.detach().float()
""",
    ),
    BlindProgram(
        name="policy_per_environment",
        kind="a policy asked for one environment at a time",
        cause=r"loop|batch|one (by one|at a time)|times (in|a|per) (a )?step|small",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class Environment:
      def __init__(self, seed):
          self.state = torch.randn(24, generator=torch.Generator().manual_seed(seed))

      def observe(self):
          return self.state

      def act(self, action):
          self.state = self.state.roll(1) * 0.99
          self.state[0] += 0.1 * action
          return float(self.state[0])


  policy = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6))
  environments = [Environment(seed) for seed in range(96)]


  @torch.no_grad()
  def collect():
      rewards = []
-     for environment in environments:
-         observation = environment.observe().unsqueeze(0)
!         logits = policy(observation)
!         action = logits.argmax(1).item()
-         rewards.append(environment.act(action))
+     logits = policy(torch.stack([environment.observe() for environment in environments]))
+     for environment, action in zip(environments, logits.argmax(1).tolist()):
+         rewards.append(environment.act(action))
      return torch.tensor(rewards)


  def step(index):
*     return collect()
""",
    ),
    BlindProgram(
        name="pairwise_broadcast",
        kind="a giant intermediate of pairwise differences",
        cause=r"cdist|pairwise|intermediate|broadcast|materiali|temporar|memory|matmul|matrix (product|multipl)|traffic|bytes|bandwidth",
        text="""
  import torch

  torch.manual_seed(0)
  queries = torch.randn(128, 32)
  gallery = torch.randn(512, 32)


  def nearest(a, b):
!     difference = a[:, None, :] - b[None, :, :]
!     distance = (difference * difference).sum(-1)
+     distance = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * (a @ b.t())
      return distance.min(1).values


  def step(index):
*     return nearest(queries.roll(index, 0), gallery)
""",
    ),
    BlindProgram(
        name="one_hot_matmul",
        kind="one-hot times a weight matrix in place of a look-up",
        cause=r"one[-_ ]hot|embedding|look-?up|index",
        modules=r"Tagger",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class Tagger(nn.Module):
      def __init__(self):
          super().__init__()
          self.word = nn.Parameter(torch.randn(2000, 64) * 0.1)
          self.mix = nn.Linear(64, 64)
          self.out = nn.Linear(64, 20)

      def forward(self, ids):
!         onehot = nn.functional.one_hot(ids, 2000).float()
!         x = onehot @ self.word
+         x = nn.functional.embedding(ids, self.word)
          return self.out(torch.relu(self.mix(x)))


  model = Tagger()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
  ids = torch.randint(2000, (16, 32))
  tags = torch.randint(20, (16, 32))


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="sort_for_top_k",
        kind="a full sort where the ten best suffice",
        cause=r"topk|top-k|sort",
        text="""
  import torch

  torch.manual_seed(0)
  items = torch.randn(20000, 32)
  users = torch.randn(512, 32)


  def recommend(user):
      scores = user @ items.t()
!     order = torch.argsort(scores, dim=1, descending=True)
!     best = order[:, :10]
+     best = scores.topk(10, dim=1).indices
      return best


  def step(index):
      return recommend(users[(index * 4) % 512 : (index * 4) % 512 + 4])
""",
    ),
    BlindProgram(
        name="inverse_for_solve",
        kind="an explicit inverse where a solve suffices",
        cause=r"solve|inverse|inv\\b|cholesky|factor",
        text="""
  import torch

  torch.manual_seed(0)
  base = torch.randn(420, 420)
  noise = torch.randn(64, 420)


  def gaussian_nll(residual, covariance):
!     precision = torch.linalg.inv(covariance)
-     mahalanobis = (residual @ precision * residual).sum(1)
-     return (mahalanobis + torch.logdet(covariance)).mean()
+     factor = torch.linalg.cholesky(covariance)
+     white = torch.linalg.solve_triangular(factor, residual.t(), upper=False)
+     return ((white * white).sum(0) + 2 * factor.diagonal().log().sum()).mean()


  def step(index):
      covariance = base @ base.t() / 420 + torch.eye(420) * (1 + 0.01 * index)
      return gaussian_nll(noise, covariance)
""",
    ),
    BlindProgram(
        name="full_svd",
        kind="full square factors of a tall matrix",
        cause=r"svd|full_matrices|reduced|economy|low[- ]rank|eigh|decompos|factor",
        text="""
  import torch

  torch.manual_seed(0)
  data = torch.randn(700, 40)


  def principal_axes(x):
      centered = x - x.mean(0)
!     u, s, vh = torch.linalg.svd(centered)
+     u, s, vh = torch.linalg.svd(centered, full_matrices=False)
      return s


  def step(index):
*     return principal_axes(data * (1 + 0.001 * index))
""",
    ),
    BlindProgram(
        name="logits_of_all_positions",
        kind="the output layer on all positions where the last suffices",
        cause=r"last|position|slice|used|unused|fraction|select|before",
        modules=r"(.*\.)?head",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class LanguageModel(nn.Module):
      def __init__(self):
          super().__init__()
          self.embed = nn.Embedding(4000, 96)
          self.rnn = nn.GRU(96, 96, batch_first=True)
          self.head = nn.Linear(96, 4000)

      def forward(self, tokens):
          hidden, _ = self.rnn(self.embed(tokens))
!         return self.head(hidden)
+         return self.head(hidden[:, -1:])


  model = LanguageModel().eval()
  prompt = torch.randint(4000, (8, 48))


  @torch.no_grad()
  def next_tokens(tokens):
*     logits = model(tokens)
!     return logits[:, -1].softmax(-1).argmax(-1)
+     return logits[:, -1].softmax(-1).argmax(-1)


  def step(index):
*     return next_tokens(prompt.roll(index, 1))
""",
    ),
    BlindProgram(
        name="gradients_of_the_backbone",
        kind="gradients of a backbone that is not trained",
        cause=r"no_grad|requires_grad|gradient|frozen|not (trained|updated|used|in)|detach",
        modules=r".*",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  backbone = nn.Sequential(
      nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
      nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
  ).eval()
  head = nn.Linear(32, 5)
  optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
  images = torch.randn(8, 3, 48, 48)
  labels = torch.randint(5, (8,))


  def step(index):
      optimizer.zero_grad()
!     features = backbone(images)
+     with torch.no_grad():
+         features = backbone(images)
      loss = nn.functional.cross_entropy(head(features), labels)
!     loss.backward()
+     loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="a_backward_for_each_loss",
        kind="one backward pass for each term of the loss, with a retained graph",
        cause=r"retain_graph|backward|sum (of )?the losses|times|twice|one pass",
        modules=r".*",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class MultiTask(nn.Module):
      def __init__(self):
          super().__init__()
          self.trunk = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
          self.heads = nn.ModuleList(nn.Linear(512, 3) for _ in range(4))

      def forward(self, x):
          shared = self.trunk(x)
          return [head(shared) for head in self.heads]


  model = MultiTask()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(64, 128)
  labels = torch.randint(3, (4, 64))


  def step(index):
      optimizer.zero_grad()
      losses = [nn.functional.cross_entropy(out, label) for out, label in zip(model(x), labels)]
!     for loss in losses:
!         loss.backward(retain_graph=True)
+     sum(losses).backward()
      optimizer.step()
      return torch.stack([loss.detach() for loss in losses])
""",
    ),
    BlindProgram(
        name="confusion_by_item",
        kind="a metric in a Python loop with .item() for each sample, each step",
        cause=r"item|loop|python|scalar|bincount|small",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(512, 64)
  y = torch.randint(10, (512,))


  def confusion(predicted, labels):
-     table = torch.zeros(10, 10, dtype=torch.long)
-     for i in range(len(labels)):
!         table[labels[i].item(), predicted[i].item()] += 1
-     return table
+     return torch.bincount(labels * 10 + predicted, minlength=100).view(10, 10)


  def step(index):
      optimizer.zero_grad()
      logits = model(x)
      loss = nn.functional.cross_entropy(logits, y)
      loss.backward()
      optimizer.step()
*     return confusion(logits.argmax(1), y)
""",
    ),
    BlindProgram(
        name="checkpoint_each_step",
        kind="the model saved to disk in every step",
        cause=r"sav(e|ed|ing)|checkpoint|disk|writ(e|es|ing)|file",
        text="""
  import os
  import tempfile

  import torch
  from torch import nn

  torch.manual_seed(0)
  folder = tempfile.mkdtemp()
  model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 256))
  optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
  x = torch.randn(32, 256)


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
-     state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": index}
!     torch.save(state, os.path.join(folder, "last.pt"))
+     if index % 40 == 39:
+         state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": index}
+         torch.save(state, os.path.join(folder, "last.pt"))
      return loss.detach()
""",
    ),
    BlindProgram(
        name="json_history_rewritten",
        kind="the whole history written as JSON in every step",
        cause=r"json|disk|writ(e|es|ing)|file|log|dump",
        text="""
  import json
  import os
  import tempfile

  import torch
  from torch import nn

  torch.manual_seed(0)
  folder = tempfile.mkdtemp()
  model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
  x = torch.randn(64, 64)
  history = [{"step": number, "loss": 1.0 / (number + 1), "lr": 0.001, "tag": "warm-up"} for number in range(3000)]


  def log(index, loss):
      history.append({"step": index, "loss": loss, "lr": 0.001, "tag": "train"})
-     with open(os.path.join(folder, "history.json"), "w") as file:
!         json.dump(history, file)
+     with open(os.path.join(folder, "history.jsonl"), "a") as file:
+         file.write(json.dumps(history[-1]) + "\\n")


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
*     log(index, loss.item())
      return loss.detach()
""",
    ),
    BlindProgram(
        name="ema_by_deepcopy",
        kind="an average of the weights by a deep copy of the model in every step",
        cause=r"deep ?copy|cop(y|ies)|ema\\b|foreach|lerp|loop|small|python",
        text="""
  import copy

  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(*[layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())])
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  average = copy.deepcopy(model)
  x = torch.randn(16, 64)


  @torch.no_grad()
  def update_average():
      global average
-     fresh = copy.deepcopy(average)
-     state = model.state_dict()
-     blended = {}
-     for name, value in fresh.state_dict().items():
!         blended[name] = 0.99 * value + 0.01 * state[name]
!     fresh.load_state_dict(blended)
-     average = fresh
+     torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
*     update_average()
      return torch.stack([p.sum() for p in average.parameters()]).sum().detach()
""",
    ),
    BlindProgram(
        name="statistics_hooks",
        kind="hooks left over from debugging that take statistics of each activation",
        cause=r"hook|item|quantile|sort|statistic|debug|monitor|log",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(
      nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)
  )
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(128, 128)
  y = torch.randint(10, (128,))
- statistics = {}
-
-
- def watch(name):
-     def hook(module, inputs, output):
-         values = output.detach().flatten()
!         statistics[name] = (values.mean().item(), values.std().item(), values.quantile(0.99).item())
-
-     return hook
-
-
- for name, module in model.named_children():
-     module.register_forward_hook(watch(name))


  def step(index):
      optimizer.zero_grad()
*     loss = nn.functional.cross_entropy(model(x), y)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="padded_to_the_maximum",
        kind="every batch padded to the model's maximum length",
        cause=r"pad|length|zeros|bucket|shorter",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  sentences = [torch.randint(1, 1000, (length,)) for length in torch.randint(12, 40, (256,)).tolist()]
  labels = torch.randint(4, (256,))


  class Encoder(nn.Module):
      def __init__(self):
          super().__init__()
          self.embed = nn.Embedding(1000, 64, padding_idx=0)
          self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
          self.head = nn.Linear(64, 4)

      def forward(self, tokens):
          padding = tokens == 0
          hidden = self.layer(self.embed(tokens), src_key_padding_mask=padding)
          kept = (~padding).unsqueeze(-1)
          return self.head((hidden * kept).sum(1) / kept.sum(1))


  def collate(batch):
!     tokens = torch.zeros(len(batch), 128, dtype=torch.long)
+     tokens = torch.zeros(len(batch), max(len(sentence) for sentence in batch), dtype=torch.long)
      for row, sentence in enumerate(batch):
!         tokens[row, : len(sentence)] = sentence
+         tokens[row, : len(sentence)] = sentence
      return tokens


  model = Encoder()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


  def step(index):
      first = (index * 8) % 256
      tokens = collate(sentences[first : first + 8])
      optimizer.zero_grad()
*     loss = nn.functional.cross_entropy(model(tokens), labels[first : first + 8])
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="tokenize_in_the_loop",
        kind="the same texts tokenized again in every step",
        cause=r"token|regex|re\\b|python|prepar|once|cache|host|input",
        text="""
  import re

  import torch
  from torch import nn

  torch.manual_seed(0)
  words = [f"word{number}" for number in range(800)]
  vocabulary = {word: number for number, word in enumerate(words)}
  picks = torch.randint(800, (48, 120), generator=torch.Generator().manual_seed(1)).tolist()
  texts = [" ".join(words[i].title() + "," for i in row) for row in picks]
  pattern = re.compile(r"[a-z]+[0-9]+|[^\\sa-z0-9]")


  def encode(text):
      ids = []
!     for token in pattern.findall(text.lower()):
!         if token in vocabulary:
!             ids.append(vocabulary[token])
+     for token in pattern.findall(text.lower()):
+         if token in vocabulary:
+             ids.append(vocabulary[token])
      return ids


  model = nn.Sequential(nn.EmbeddingBag(800, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  labels = torch.randint(8, (48,))
+ encoded = torch.tensor([encode(text) for text in texts])


  def step(index):
!     tokens = torch.tensor([encode(text) for text in texts])
+     tokens = encoded
      optimizer.zero_grad()
      loss = nn.functional.cross_entropy(model(tokens), labels)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="activation_in_numpy",
        kind="an activation computed in numpy in the middle of a model",
        cause=r"numpy|float64|double|outside (of )?torch|python|host|round[- ]trip",
        modules=r".*act(ivation)?.*",
        text="""
  import numpy
  import torch
  from torch import nn

  torch.manual_seed(0)


  class Swish(nn.Module):
      def forward(self, x):
!         values = x.numpy().astype(numpy.float64)
!         return torch.from_numpy((values / (1.0 + numpy.exp(-values))).astype(numpy.float32))
+         return nn.functional.silu(x)


  model = nn.Sequential(nn.Linear(64, 256), Swish(), nn.Linear(256, 256), Swish(), nn.Linear(256, 10)).eval()
  x = torch.randn(1024, 64)


  @torch.no_grad()
  def step(index):
*     return model(x.roll(index, 0))
""",
    ),
    BlindProgram(
        name="lock_held_while_writing",
        kind="the training loop waits for a lock that a reporter thread holds while it works",
        cause=r"lock|wait|idle|block|thread",
        text="""
  import threading
  import time

  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
  x = torch.randn(128, 128)
  lock = threading.Lock()
  values = []


  def send(batch):
      time.sleep(0.006)  # a request to the metrics server


  def report():
      while True:
!         with lock:
+         with lock:
-             batch = list(values)
-             values.clear()
!             send(batch)
+             batch = list(values)
+             values.clear()
+         send(batch)
          time.sleep(0.0005)


  threading.Thread(target=report, daemon=True).start()


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
*     with lock:
          values.append(float(loss))
      return loss.detach()
""",
    ),
    BlindProgram(
        name="memory_by_subprocess",
        kind="a program started in every step to read the memory in use",
        cause=r"subprocess|process|ps\\b|command|fork|wait",
        text="""
  import os
  import subprocess

  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128))
  optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
  x = torch.randn(64, 128)
  peak = 0


  def resident_kib():
!     output = subprocess.run(["cat", f"/proc/{os.getpid()}/statm"], capture_output=True, text=True).stdout
-     return int(output.split()[1]) * 4
+     with open(f"/proc/{os.getpid()}/statm") as file:
+         return int(file.read().split()[1]) * 4


  def step(index):
      global peak
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
*     peak = max(peak, resident_kib())
      return loss.detach()
""",
    ),
    BlindProgram(
        name="new_loader_iterator",
        kind="next(iter(loader)) in every step: the whole data set is shuffled for one batch",
        cause=r"iter|shuffl|sampler|randperm|loader|permut|every step|each step",
        same="kind",
        text="""
  import torch
  from torch import nn
  from torch.utils.data import DataLoader, TensorDataset

  torch.manual_seed(0)
  count = 200_000
  loader = DataLoader(TensorDataset(torch.randn(count, 8), torch.randn(count, 1)), batch_size=64, shuffle=True)
  model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
+ batches = iter(loader)


  def step(index):
!     x, y = next(iter(loader))
+     x, y = next(batches)
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), y)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="autocast_of_small_layers",
        kind="autocast to bfloat16 around layers that are too small to gain",
        cause=r"autocast|cast|bfloat16|dtype|convert|conversion|_to_copy|precision",
        modules=r".*",
        same="kind",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(48, 48), nn.LayerNorm(48), nn.ReLU())])
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(32, 48)


  def step(index):
      optimizer.zero_grad()
!     with torch.autocast("cpu", dtype=torch.bfloat16):
!         loss = nn.functional.mse_loss(model(x), x)
+     loss = nn.functional.mse_loss(model(x), x)
*     loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="clipping_by_hand",
        kind="gradient norms taken parameter by parameter with .item()",
        cause=r"item|clip|loop|foreach|small|python",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh())])
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
  x = torch.randn(8, 32)


  def clip(parameters, limit):
-     total = 0.0
-     for p in parameters:
!         total += (p.grad.detach() ** 2).sum().item()
-     norm = total**0.5
-     for p in parameters:
-         if norm > limit:
!             p.grad = p.grad * (limit / (norm + 1e-6))
+     torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
*     clip(list(model.parameters()), 0.01)
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="validation_each_step",
        kind="the validation set evaluated after every step",
        cause=r"validat|evaluat|no_grad|eval|every step|each step|forward|often",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x, y = torch.randn(128, 32), torch.randint(5, (128,))
  valid_x, valid_y = torch.randn(2048, 32), torch.randint(5, (2048,))
  accuracy = 0.0


  @torch.no_grad()
  def validate():
!     return (model(valid_x).argmax(1) == valid_y).float().mean().item()
+     return (model(valid_x).argmax(1) == valid_y).float().mean().item()


  def step(index):
      global accuracy
      optimizer.zero_grad()
      loss = nn.functional.cross_entropy(model(x), y)
      loss.backward()
      optimizer.step()
!     accuracy = validate()
+     if index % 20 == 19:
+         accuracy = validate()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="anomaly_detection_left_on",
        kind="set_detect_anomaly left on",
        cause=r"anomaly|nan",
        modules=r".*",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
- torch.autograd.set_detect_anomaly(True)
  model = nn.Sequential(*[layer for _ in range(16) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())])
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(32, 64)


  def step(index):
      optimizer.zero_grad()
*     loss = nn.functional.mse_loss(model(x), x)
*     loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="garbage_collection_each_step",
        kind="gc.collect() in every step beside a large set of Python objects",
        cause=r"gc\\b|garbage|collect",
        text="""
  import gc

  import torch
  from torch import nn

  torch.manual_seed(0)
  samples = [{"id": number, "tags": [number, number + 1]} for number in range(20_000)]
  model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
  optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
  x = torch.randn(64, 128)


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
!     gc.collect()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="images_in_the_wrong_layout",
        kind="a transposed copy of constant data read with large strides in every step",
        cause=r"contiguous|layout|stride|transpos|copy|copies|memory format|every step|each step|same",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
  video = torch.rand(96, 96, 3, 64)  # height, width, channel, frame
+ frames = video.permute(3, 2, 0, 1).contiguous()


  @torch.no_grad()
  def step(index):
!     batch = video.permute(3, 2, 0, 1).contiguous()
+     batch = frames
      return model(batch)
""",
    ),
    BlindProgram(
        name="crops_one_by_one",
        kind="augmentation of one image at a time with small operators",
        cause=r"loop|one (by one|at a time)|batch|small|times|stack|python",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  images = torch.rand(512, 3, 20, 20)
  labels = torch.randint(4, (512,))
  mean = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
  model = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 4))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
+ rows = torch.arange(16)


  def augment(batch, offsets):
-     out = []
-     for image, (top, left, flip) in zip(batch, offsets):
!         crop = image[:, top : top + 16, left : left + 16]
!         crop = (crop - mean) / 0.25
-         if flip:
!             crop = crop.flip(2)
-         out.append(crop)
-     return torch.stack(out)
+     offsets = torch.tensor(offsets)
+     columns = torch.where(offsets[:, 2:] == 1, 15 - rows, rows) + offsets[:, 1:2]
+     lines = rows + offsets[:, :1]
+     picked = torch.arange(len(batch))[:, None, None]
+     crops = batch.permute(0, 2, 3, 1)[picked, lines[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
+     return (crops - mean) / 0.25


  def step(index):
      first = (index * 256) % 512
      offsets = [((i * 7 + index) % 5, (i * 3 + index) % 5, i % 2) for i in range(256)]
*     x = augment(images[first : first + 256], offsets)
      optimizer.zero_grad()
      loss = nn.functional.cross_entropy(model(x), labels[first : first + 256])
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="product_in_the_wrong_order",
        kind="a chain of matrix products in the expensive order",
        cause=r"order|chain|associat|multi_dot|parenthes|vector|right to left|cheaper",
        text="""
  import torch

  torch.manual_seed(0)
  a = torch.randn(640, 640)
  b = torch.randn(640, 640)
  v = torch.randn(640, 4)


  def project(x):
!     return a @ b @ x
+     return a @ (b @ x)


  def step(index):
*     y = project(v * (1 + index))
      return torch.tanh(y / y.norm())
""",
    ),
    BlindProgram(
        name="outputs_grown_by_cat",
        kind="the outputs of a recurrent loop grown by torch.cat at every time step",
        cause=r"cat\b|preallocat|grow|copies|copied|copy|stack",
        modules=r"Recurrent",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class Recurrent(nn.Module):
      def __init__(self):
          super().__init__()
          self.cell = nn.GRUCell(16, 64)
          self.out = nn.Linear(64, 16)

      def forward(self, x):
          hidden = torch.zeros(x.size(0), 64)
-         outputs = torch.zeros(x.size(0), 0, 64)
+         outputs = []
          for t in range(x.size(1)):
              hidden = self.cell(x[:, t], hidden)
!             outputs = torch.cat([outputs, hidden.unsqueeze(1)], 1)
+             outputs.append(hidden)
-         return self.out(outputs)
+         return self.out(torch.stack(outputs, 1))


  model = Recurrent().eval()
  x = torch.randn(32, 160, 16)


  @torch.no_grad()
  def step(index):
*     return model(x * (1 + 0.01 * index))
""",
    ),
    BlindProgram(
        name="attention_head_by_head",
        kind="attention in a Python loop over batch and heads",
        cause=r"loop|small|times|batch|scaled_dot_product|fuse|one (by one|at a time)|head",
        modules=r"Attention",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class Attention(nn.Module):
      def __init__(self):
          super().__init__()
          self.qkv = nn.Linear(64, 192)
          self.out = nn.Linear(64, 64)

      def forward(self, x):
          q, k, v = self.qkv(x).view(8, 24, 3, 8, 8).permute(2, 0, 3, 1, 4)
-         rows = []
-         for sample in range(8):
-             heads = []
-             for head in range(8):
!                 scores = q[sample, head] @ k[sample, head].t() / 8**0.5
!                 heads.append(scores.softmax(-1) @ v[sample, head])
-             rows.append(torch.cat(heads, -1))
-         return self.out(torch.stack(rows))
+         y = nn.functional.scaled_dot_product_attention(q, k, v)
+         return self.out(y.transpose(1, 2).reshape(8, 24, 64))


  model = Attention()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(8, 24, 64)


  def step(index):
      optimizer.zero_grad()
*     loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="parametrization_recomputed",
        kind="an orthogonal weight computed anew for each time step",
        cause=r"parametriz|orthogonal|cached|matrix_exp|every call|each call|same|recomput|repeat|times",
        modules=r".*(recur|parametriz|orthogonal).*",
        text="""
  import torch
  from torch import nn
  from torch.nn.utils import parametrizations, parametrize

  torch.manual_seed(0)


  class Recurrent(nn.Module):
      def __init__(self):
          super().__init__()
          self.inward = nn.Linear(16, 48)
          self.recur = parametrizations.orthogonal(nn.Linear(48, 48, bias=False))

      def forward(self, x):
          hidden = torch.zeros(x.size(0), 48)
          for t in range(x.size(1)):
!             hidden = torch.tanh(self.inward(x[:, t]) + self.recur(hidden))
+             hidden = torch.tanh(self.inward(x[:, t]) + self.recur(hidden))
          return hidden


  model = Recurrent()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(32, 20, 16)


  def step(index):
      optimizer.zero_grad()
*     loss = model(x).square().mean()
+     with parametrize.cached():
+         loss = model(x).square().mean()
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="optimizer_written_by_hand",
        kind="Adam written as a Python loop over parameters",
        cause=r"optimizer|adam|fused|foreach|loop|small|python",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(40, 40), nn.LayerNorm(40), nn.ReLU())])
  x = torch.randn(16, 40)


- class Adam:
-     def __init__(self, parameters, lr):
-         self.parameters, self.lr, self.count = list(parameters), lr, 0
-         self.first = [torch.zeros_like(p) for p in self.parameters]
-         self.second = [torch.zeros_like(p) for p in self.parameters]
-
-     def zero_grad(self):
-         for p in self.parameters:
-             p.grad = None
-
-     @torch.no_grad()
-     def step(self):
-         self.count += 1
-         for p, m, v in zip(self.parameters, self.first, self.second):
!             m.copy_(0.9 * m + 0.1 * p.grad)
!             v.copy_(0.999 * v + 0.001 * p.grad * p.grad)
!             corrected = m / (1 - 0.9**self.count)
!             scale = (v / (1 - 0.999**self.count)).sqrt() + 1e-8
!             p.copy_(p - self.lr * corrected / scale)
-
-
- optimizer = Adam(model.parameters(), 0.001)
+ optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
*     optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="debug_text_of_tensors",
        kind="tensors formatted for debug messages that nobody prints",
        cause=r"format|string|text|repr|print|log|debug|str\\b",
        text="""
  import logging

  import torch
  from torch import nn

  torch.manual_seed(0)
  log = logging.getLogger("train")
  model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(64, 64)


  def step(index):
      optimizer.zero_grad()
      out = model(x)
      loss = nn.functional.mse_loss(out, x)
!     log.debug(f"step {index}: loss {loss}, output {out}")
+     log.debug("step %s: loss %s, output %s", index, loss, out)
      loss.backward()
      for name, p in model.named_parameters():
!         log.debug(f"{name}: gradient {p.grad}")
+         log.debug("%s: gradient %s", name, p.grad)
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="tensor_from_lists",
        kind="batches made of nested Python lists of numbers",
        cause=r"list|torch\\.tensor|numpy|stack|python|convert|build|scalar",
        text="""
  import collections
  import random

  import torch
  from torch import nn

  torch.manual_seed(0)
  random.seed(0)
  memory = collections.deque(maxlen=1000)
  for _ in range(1000):
-     memory.append(([random.random() for _ in range(128)], random.random()))
+     memory.append((torch.tensor([random.random() for _ in range(128)]), random.random()))
  model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


  def step(index):
      random.seed(index)
      batch = random.sample(memory, 256)
!     states = torch.tensor([state for state, _ in batch])
+     states = torch.stack([state for state, _ in batch])
      returns = torch.tensor([value for _, value in batch])
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(states).squeeze(1), returns)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="queue_polled_with_sleep",
        kind="a queue polled with sleep in place of a blocking get",
        cause=r"sleep|wait|poll|idle|block",
        text="""
  import queue
  import threading
  import time

  import torch
  from torch import nn

  torch.manual_seed(0)
  requests, batches = queue.Queue(), queue.Queue()


  def produce():
      while True:
          index = requests.get()
          batches.put(torch.full((64, 64), 0.01) * (index % 7))


  threading.Thread(target=produce, daemon=True).start()
  model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


  def fetch():
-     while batches.empty():
!         time.sleep(0.005)
!     return batches.get()
+     return batches.get()


  def step(index):
      requests.put(index)
*     x = fetch()
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="compiled_for_each_length",
        kind="torch.compile with static shapes and another length in every step",
        cause=r"compil|recompil|dynamo|guard|dynamic",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  torch._dynamo.config.recompile_limit = 10_000
  torch._dynamo.config.accumulated_recompile_limit = 10_000
  model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512)).eval()


! @torch.compile(backend="eager", dynamic=False)
+ @torch.compile(backend="eager", dynamic=True)
  def score(x):
      return model(x).softmax(-1).amax(1)


  @torch.no_grad()
  def step(index):
      x = torch.full((256 + index, 32), 0.1)
*     return score(x)[:4]
""",
    ),
    BlindProgram(
        name="dense_gradient_of_a_large_table",
        kind="a dense gradient and update of a large embedding table of which few rows are used",
        cause=r"sparse|embedding|dense|rows",
        modules=r"(.*\.)?(items|0).*",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)


  class Recommender(nn.Module):
      def __init__(self):
          super().__init__()
!         self.items = nn.Embedding(200_000, 32)
+         self.items = nn.Embedding(200_000, 32, sparse=True)
          self.score = nn.Linear(32, 1)

      def forward(self, ids):
*         return self.score(self.items(ids)).squeeze(-1)


  model = Recommender()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  ids = torch.randint(200_000, (64, 8))
  targets = torch.randn(64, 8)


  def step(index):
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(ids), targets)
*     loss.backward()
*     optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="penalty_in_the_loss",
        kind="weight decay written into the loss, parameter by parameter",
        cause=r"weight_decay|weight decay|penalty|regulari|loop|small|parameter|norm",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(48, 48), nn.LayerNorm(48), nn.ReLU())])
- optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
+ optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=2e-4, foreach=True)
  x = torch.randn(16, 48)


  def step(index):
      optimizer.zero_grad()
      out = model(x)
      loss = nn.functional.mse_loss(out, x)
!     penalty = sum((p**2).sum() for p in model.parameters())
!     (loss + 1e-4 * penalty).backward()
+     loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="class_means_by_masks",
        kind="a mean for each class by a boolean mask in a Python loop",
        cause=r"loop|mask|nonzero|index_add|scatter|small|times|python",
        text="""
  import torch

  torch.manual_seed(0)
  features = torch.randn(8192, 32)
  labels = torch.randint(200, (8192,))


  def prototypes(x, y):
-     means = []
-     for label in range(200):
!         means.append(x[y == label].mean(0))
-     return torch.stack(means)
+     sums = torch.zeros(200, x.size(1)).index_add_(0, y, x)
+     return sums / torch.bincount(y, minlength=200).unsqueeze(1)


  def step(index):
*     return prototypes(features * (1 + index), labels)
""",
    ),
    BlindProgram(
        name="forward_again_for_accuracy",
        kind="a second forward pass of the same batch to count the hits",
        cause=r"twice|second|again|same (input|result|batch)|repeat|reuse|duplicate|2 times|recomput",
        modules=r".*",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(
      nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 10)
  )
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  images = torch.randn(32, 1, 16, 16)
  labels = torch.randint(10, (32,))


  def step(index):
      optimizer.zero_grad()
-     loss = nn.functional.cross_entropy(model(images), labels)
+     logits = model(images)
+     loss = nn.functional.cross_entropy(logits, labels)
-     with torch.no_grad():
!         hits = (model(images).argmax(1) == labels).sum()
+     hits = (logits.argmax(1) == labels).sum()
      loss.backward()
      optimizer.step()
      return torch.stack([loss.detach(), hits.float()])
""",
    ),
    BlindProgram(
        name="generator_graph_in_discriminator_step",
        kind="the discriminator's loss goes back into the generator for lack of detach()",
        cause=r"detach|no_grad|gradient|not (used|updated|needed)|zeroed|discard|thrown|never",
        modules=r".*",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  generator = nn.Sequential(nn.Linear(32, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 64))
  discriminator = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
  optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.01)
  real = torch.randn(128, 64)
  noise = torch.randn(128, 32)


  def step(index):
      generator.zero_grad()
      optimizer.zero_grad()
!     fake = generator(noise)
+     with torch.no_grad():
+         fake = generator(noise)
      loss = nn.functional.softplus(-discriminator(real)).mean() + nn.functional.softplus(discriminator(fake)).mean()
!     loss.backward()
+     loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="needless_activation_checkpointing",
        kind="activation checkpointing of a model that fits in memory",
        cause=r"checkpoint|recomput|forward.*(again|twice)|twice",
        modules=r".*",
        text="""
  import torch
  from torch import nn
  from torch.utils.checkpoint import checkpoint

  torch.manual_seed(0)


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(3))

      def forward(self, x):
          for block in self.blocks:
!             x = checkpoint(block, x, use_reentrant=False)
+             x = block(x)
          return x


  model = Net()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  x = torch.randn(8, 32, 64)


  def step(index):
      optimizer.zero_grad()
      loss = model(x).square().mean()
*     loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="samples_unpacked_each_time",
        kind="compressed samples read and unpacked again in every epoch",
        cause=r"load|decompress|zip|npz|file|read|cache|data|input",
        text="""
  import os
  import tempfile

  import numpy
  import torch
  from torch import nn
  from torch.utils.data import DataLoader, Dataset

  torch.manual_seed(0)
  folder = tempfile.mkdtemp()
  rng = numpy.random.default_rng(0)
  for number in range(64):
      numpy.savez_compressed(os.path.join(folder, f"{number}.npz"), x=rng.normal(size=(64, 64)).astype("float32"))


  class Scans(Dataset):
+     def __init__(self):
+         self.loaded = {}
+
      def __len__(self):
          return 64

      def __getitem__(self, number):
!         return torch.from_numpy(numpy.load(os.path.join(folder, f"{number}.npz"))["x"])
+         if number not in self.loaded:
+             self.loaded[number] = torch.from_numpy(numpy.load(os.path.join(folder, f"{number}.npz"))["x"])
+         return self.loaded[number]


  def forever(loader):
      while True:
          yield from loader


  batches = forever(DataLoader(Scans(), batch_size=16))
  model = nn.Sequential(nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


  def step(index):
*     x = next(batches)
      optimizer.zero_grad()
      loss = model(x).square().mean()
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
    BlindProgram(
        name="half_precision_on_the_processor",
        kind="float16 weights where the processor computes float16 slowly",
        cause=r"float16|half|dtype|precision|float32",
        modules=r".*",
        same="kind",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  model = nn.Sequential(nn.Conv1d(16, 32, 5), nn.ReLU(), nn.Conv1d(32, 32, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1)).eval()
  x = torch.randn(4, 16, 512)
! model, x = model.half(), x.half()


  @torch.no_grad()
  def step(index):
*     return model(x.roll(index, 0)).float()
""",
    ),
    BlindProgram(
        name="shuffle_for_one_batch",
        kind="a permutation of the whole data set for one batch",
        cause=r"randperm|permut|shuffl|randint|random",
        same="kind",
        text="""
  import torch
  from torch import nn

  torch.manual_seed(0)
  data = torch.randn(1_000_000, 4)
  model = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
  optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


  def step(index):
!     rows = torch.randperm(len(data))[:128]
+     rows = torch.randint(len(data), (128,))
      x = data[rows]
      optimizer.zero_grad()
      loss = nn.functional.mse_loss(model(x), x)
      loss.backward()
      optimizer.step()
      return loss.detach()
""",
    ),
)
