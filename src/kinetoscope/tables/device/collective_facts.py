"""The facts about a collective, from its name, its arguments, the recorder's notes, and the name of its kernel."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from kinetoscope.model.strings import parsed_json
from kinetoscope.tables.costs.call import ITEM_BYTES, SPELLINGS, torch_type

# torch's operator -> the collective, and the positions of its input, its output, and the root or peer rank.
CALLS: dict[str, tuple[str, int, int, int]] = {
    "c10d::allreduce_": ("all_reduce", 0, 0, -1),
    "c10d::allreduce_coalesced_": ("all_reduce", 0, 0, -1),
    "c10d::broadcast_": ("broadcast", 0, 0, 2),
    "c10d::reduce_": ("reduce", 0, 0, 3),
    "c10d::allgather_": ("all_gather", 0, 1, -1),
    "c10d::_allgather_base_": ("all_gather", 0, 1, -1),
    "c10d::allgather_coalesced_": ("all_gather", 0, 1, -1),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0, 1, -1),
    "c10d::reduce_scatter_": ("reduce_scatter", 0, 1, -1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 0, 1, -1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 0, 1, -1),
    "c10d::gather_": ("gather", 0, 1, 3),
    "c10d::gather_into_tensor_": ("gather", 0, 1, 3),
    "c10d::scatter_": ("scatter", 0, 1, 3),
    "c10d::alltoall_": ("all_to_all", 0, 1, -1),
    "c10d::alltoall_base_": ("all_to_all", 0, 1, -1),
    "c10d::send": ("send", -1, 0, 2),
    "c10d::recv_": ("recv", 0, -1, 2),
    "c10d::recv_any_source_": ("recv", 0, -1, -1),
    "c10d::barrier": ("barrier", -1, -1, -1),
    "c10d::monitored_barrier_": ("barrier", -1, -1, -1),
}
DESCRIBED = "record_param_comms"
"""The operator with which some backends describe a call; the description contains the call's name."""

# The names of calls in such descriptions.
_DESCRIBED_NAMES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allgather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather", "_all_gather_base": "all_gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "_allgather_base": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter", "alltoall": "all_to_all",
    "all_to_all": "all_to_all", "all_to_allv": "all_to_all", "alltoall_base": "all_to_all",
}  # fmt: skip


# Kernel names of NCCL and RCCL, of the all-reduces of vLLM, SGLang and torch, and of DeepEP.
_NAMES = (
    (re.compile(r"(?:(?<!\w)|deep_)ep::.*dispatch", re.IGNORECASE), "dispatch"),
    (re.compile(r"(?:(?<!\w)|deep_)ep::.*combine", re.IGNORECASE), "combine"),
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"send_?recv", re.IGNORECASE), "send_recv"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_REDUCTION = re.compile(r"_(Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv)(?=_)")
_TYPE = re.compile(
    r"_(f16|f32|f64|bf16|i8|u8|i32|u32|i64|u64|half|float|double|__nv_bfloat16|int8_t|uint8_t|int32_t|int64_t)(?=[_(]|$)"
)
UNKNOWN_CALL = "unknown"
"""The name of a call whose kernel name does not reveal the collective, such as NCCL's generic kernel."""


@dataclass
class Facts:
    """The facts of one collective; -1 or empty if not recorded.

    Attributes:
        name: The collective, such as all_reduce.
        group: The name of the process group.
        group_description: The program's description of the group.
        group_rank: The caller's rank in the group.
        group_size: The number of ranks in the group.
        reduction: The reduction operation, such as SUM.
        peer: The root, or for send and recv the other rank.
        dtype: The element type, as `torch.dtype` names it.
        input_elements: The number of elements that the caller sends.
        output_elements: The number of elements that it receives.
        item_bytes: The size of an element.
        is_async: 1 if the caller continues at once, 0 if it waits.
        input_splits: The number of elements for each rank, as JSON, if they differ.
        output_splits: The number of elements from each rank, likewise.
        ranks: The global ranks of the group, as JSON.
    """

    name: str
    group: str = ""
    group_description: str = ""
    group_rank: int = -1
    group_size: int = -1
    reduction: str = ""
    peer: int = -1
    dtype: str = ""
    input_elements: int = -1
    output_elements: int = -1
    item_bytes: int = -1
    is_async: int = -1
    input_splits: str = ""
    output_splits: str = ""
    ranks: str = ""

    def bytes_of(self, elements: int) -> int:
        """The size of some elements in bytes, -1 if unknown."""
        if elements == 0:
            return 0
        return elements * self.item_bytes if elements > 0 and self.item_bytes > 0 else -1


def facts_of_call(operator: str, noted: str, dims: str, concrete: str) -> Facts:
    """Return the facts of a call from the recorder's note or, without one, from its input shapes.

    Args:
        operator: One of `CALLS`.
        noted: The recorder's facts as JSON, empty for none.
        dims: The shapes of the operator's inputs as JSON, empty for none.
        concrete: Its scalar inputs as JSON, empty for none.
    """
    name, gives, takes, peer = CALLS[operator]
    described = parsed_json(noted)
    if isinstance(described, dict) and isinstance(described.get("arguments"), list):
        arguments = described["arguments"]
        facts = _common(name, described)
        amounts = {index: _amount(arguments, index) for index in {gives, takes} if index >= 0}
        spelt = next((amount[2] for amount in amounts.values() if amount[2]), "")
        facts.dtype, facts.item_bytes = type_named(spelt)
        facts.input_elements = amounts[takes][0] if takes >= 0 else 0
        facts.output_elements = amounts[gives][0] if gives >= 0 else 0
        scalars = arguments
    else:
        facts = Facts(name)
        sizes, texts = parsed_json(dims), parsed_json(concrete)
        scalars = [_scalar(text) for text in texts] if isinstance(texts, list) else []
        if isinstance(sizes, list):
            # Traces lack the shapes of nested tensor lists, but inputs and outputs have equally many elements.
            facts.input_elements = _elements(sizes, takes)
            facts.output_elements = _elements(sizes, gives)
    if name == "barrier":
        facts.input_elements = facts.output_elements = 0
    if 0 <= peer < len(scalars) and type(scalars[peer]) is int:
        facts.peer = scalars[peer]
    if operator != "c10d::monitored_barrier_":
        # `async_op` is last or precedes the timeout; the monitored barrier ends with another bool.
        facts.is_async = next((int(value) for value in scalars[-2:] if isinstance(value, bool)), -1)
    return facts


def facts_of_description(noted: str) -> Facts | None:
    """Return the facts in a backend's own description of a call; None if it does not describe one."""
    described = parsed_json(noted)
    if not isinstance(described, dict) or not isinstance(described.get("call"), str):
        return None
    call: str = described["call"]
    facts = _common(_DESCRIBED_NAMES.get(call, call), described)
    facts.dtype, _ = type_named(str(described.get("type", "")))
    facts.item_bytes = _number(described.get("item_bytes"))
    facts.input_elements = _number(described.get("in_elements"))
    facts.output_elements = _number(described.get("out_elements"))
    for side in ("in", "out"):
        if splits := described.get(f"{side}_splits"):
            setattr(facts, f"{side}put_splits", json.dumps(splits))
    facts.peer = _number(described.get("peer"))
    # torch truncates long lists in the middle, which makes them invalid JSON.
    if isinstance(described.get("ranks"), str) and isinstance(parsed_json(described["ranks"]), list):
        facts.ranks = described["ranks"]
    return facts


def facts_of_range(name: str) -> tuple[str, str]:
    """The backend and the call in the name of a backend's range, such as ``nccl:_all_gather_base`` or ``nccl:send 0->1``."""
    backend, _, call = name.partition(":")
    call = call.partition(" ")[0]
    return backend, _DESCRIBED_NAMES.get(call, call)


def facts_of_kernel(name: str) -> Facts:
    """Return the facts in a kernel's name, such as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""
    short = name.replace("(anonymous namespace)::", "").partition("(")[0]
    call = next((call_name for pattern, call_name in _NAMES if pattern.search(short)), UNKNOWN_CALL)
    facts = Facts(call)
    if call in _REDUCTIONS:
        # For other collectives NCCL also names a reduction and a type, but of bytes that it only moves.
        reduction, element = _REDUCTION.search(short), _TYPE.search(short)
        facts.reduction = reduction[1].upper() if reduction else ""
        if element:
            facts.dtype, facts.item_bytes = type_named(element[1])
    return facts


def merged(facts: Facts, described: Facts) -> Facts:
    """Fill in missing facts of a call from the backend's description, in place."""
    for name, value in vars(described).items():
        if name != "name" and getattr(facts, name) in (-1, ""):
            setattr(facts, name, value)
    return facts


def type_named(spelt: str) -> tuple[str, int]:
    """The name and size in bytes of an element type, from its spelling in torch's traces or C++; lowercased and -1 if unknown."""
    name = torch_type(spelt)
    return (spelt.lower(), -1) if name is None else (name, ITEM_BYTES[name])


def spelt_by_torch(name: str) -> str:
    """The spelling in torch's traces of a `torch.dtype` name."""
    return SPELLINGS.get(name, name).partition(", ")[0]


def elements_of(dims: str) -> int:
    """The number of elements in all inputs, from their shapes as JSON; -1 if unknown."""
    sizes = parsed_json(dims)
    parts = [_elements(sizes, place) for place in range(len(sizes))] if isinstance(sizes, list) else []
    return sum(parts) if parts and min(parts) >= 0 else -1


def _common(name: str, described: dict[str, Any]) -> Facts:
    """The facts about the process group, which both kinds of descriptions contain."""
    texts = {
        name: described[key]
        for key, name in (
            ("group", "group"), ("description", "group_description"), ("reduction", "reduction"),
        )
        if isinstance(described.get(key), str)
    }  # fmt: skip
    rank, size = (_number(described.get(key)) for key in ("rank", "size"))
    return Facts(name, group_rank=rank, group_size=size, **texts)


def _amount(arguments: list[Any], place: int) -> tuple[int, int, str]:
    """The elements, bytes and type of an argument; zeros if it is not a tensor."""
    value = arguments[place] if place < len(arguments) else None
    if isinstance(value, list) and len(value) == 3 and isinstance(value[2], str):
        return _number(value[0]), _number(value[1]), value[2]
    return 0, 0, ""


def _elements(sizes: list[Any], place: int) -> int:
    """The number of elements in the tensors of an input, from their recorded shapes."""
    if place < 0:
        return 0
    if place >= len(sizes) or not isinstance(sizes[place], list):
        return -1
    value = sizes[place]
    tensors = value if value and all(isinstance(part, list) for part in value) else [value]
    if not all(type(size) is int for tensor in tensors for size in tensor):
        return -1
    # An input without tensors looks like a scalar tensor; nothing is sent for either.
    return sum(math.prod(tensor) for tensor in tensors) if value else -1


def _scalar(text: object) -> object:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _number(value: object) -> int:
    return value if type(value) is int and -(2**31) < value < 2**62 else -1
