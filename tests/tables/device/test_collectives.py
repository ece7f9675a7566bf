import json

import pytest

from kinetoscope.analyses.description import contents
from kinetoscope.tables.device.collective_facts import (
    CALLS,
    facts_of_call,
    facts_of_description,
    facts_of_kernel,
    facts_of_range,
    type_named,
)
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder

GROUP = {"group": "0", "description": "default_pg", "rank": 1, "size": 2}


def noted(builder, **facts):
    """A trace whose spans have facts: by name of the span, as the recorder notes them."""
    recording = builder.recording()
    strings = recording["strings"]
    spans = recording["spans"]
    rows = {strings[number]: row for row, number in enumerate(spans["name"])}
    texts = [json.dumps(value) for value in facts.values()]
    collectives = {
        "span": [rows[name] for name in facts],
        "facts": list(range(len(strings), len(strings) + len(texts))),
    }
    tables = {
        name: recording[name] for name in ("threads", "frames", "stacks", "modules", "parameters", "shapes")
    }
    tables["spans"] = {{"stack": "own_stack", "module": "own_module"}.get(name, name): values for name, values in spans.items()}  # fmt: skip
    info = {key: json.loads(text) for key, text in recording["info"].items()}
    return Trace.from_columns(tables | {"collectives": collectives}, strings=[*strings, *texts], info=info)


def test_facts_of_the_recorder_and_a_transfer_on_another_thread_make_one_row():
    builder = TraceBuilder()
    builder.thread("main", os_tid=70)
    worker = builder.thread("gloo", os_tid=71)
    sizes = builder.shapes([[4]], ["float"])
    builder.span("c10d::allreduce_", 10, 5).annotation("gloo:all_reduce", 30, 50, thread=worker, shapes=sizes)
    builder.know("distributedInfo", {"rank": 1, "pg_config": [{"pg_name": "0", "ranks": [4, 7]}]})
    arguments = [[4, 16, "Float"], None, None, None, False, -1]
    trace = noted(builder, **{"c10d::allreduce_": {**GROUP, "reduction": "SUM", "arguments": arguments}})
    (row,) = trace.table("collectives").to_pylist()
    assert row | {"stack": 0, "module": 0} == {
        "span": 0, "name": "all_reduce", "backend": "gloo", "group": "0", "group_description": "default_pg",
        "group_size": 2, "group_ranks": "[4, 7]", "rank": 1, "group_rank": 1, "peer": None, "reduction": "SUM",
        "dtype": "float32", "bytes": 16, "input_bytes": 16, "output_bytes": 16, "input_elements": 4, "output_elements": 4,
        "input_splits": None, "output_splits": None, "is_async": False, "start_ns": 10, "call_ns": 5, "transfers": 1,
        "transfer_span": 1, "transfer_start_ns": 30, "transfer_ns": 50, "queued_ns": 20, "waited_ns": 65, "os_tid": 70,
        "step": None, "phase": "forward", "stack": 0, "module": 0, "overlapped_ns": None, "exposed_ns": None, "device": None,
        "stream": None, "gb_per_s": 0.32, "bus_gb_per_s": 0.32, "process": None,
    }  # fmt: skip
    assert trace.table("spans")["kind"].to_pylist() == ["operator", "collective"]


def test_without_facts_the_shapes_say_what_they_can():
    builder = TraceBuilder()
    worker = builder.thread("main"), builder.thread("gloo")
    call = builder.shapes(
        [[], [[4]], [], [], []], ["", "TensorList", "", "Scalar", "Scalar"], ["", "", "", "False", "-1"]
    )
    moved = builder.shapes([[4]], ["float"])
    builder.span("c10d::allgather_", 0, 5, shapes=call)
    builder.annotation("gloo:all_gather", 9, 5, thread=worker[1], shapes=moved)
    (row,) = builder.build().table("collectives").to_pylist()
    assert (row["input_elements"], row["output_elements"], row["dtype"]) == (4, None, "float32")
    assert (row["input_bytes"], row["output_bytes"], row["bytes"]) == (16, None, 16)
    assert (row["group"], row["is_async"], row["transfers"]) == (None, False, 1)


def test_without_shapes_the_rest_is_null():
    (row,) = TraceBuilder().span("c10d::allreduce_", 0, 5).build().table("collectives").to_pylist()
    assert (row["name"], row["bytes"], row["is_async"], row["transfers"], row["transfer_ns"]) == (
        "all_reduce", None, None, 0, None,
    )  # fmt: skip


def test_a_backends_own_description_joins_the_call_around_it():
    builder = TraceBuilder().span("c10d::allreduce_", 0, 50).span("record_param_comms", 10, 5)
    told = {**GROUP, "call": "allreduce", "in_elements": 8, "out_elements": 8, "type": "Half", "item_bytes": 2,
            "in_splits": [], "out_splits": []}  # fmt: skip
    (row,) = noted(builder, record_param_comms=told).table("collectives").to_pylist()
    assert (row["name"], row["bytes"], row["dtype"], row["group"]) == ("all_reduce", 16, "float16", "0")


def test_a_description_that_stands_alone_is_a_call_of_its_own():
    builder = TraceBuilder().span("record_param_comms", 10, 5)
    told = {**GROUP, "call": "all_to_allv", "in_elements": 8, "out_elements": 6, "type": "Float", "item_bytes": 4,
            "in_splits": [5, 3], "out_splits": [2, 4]}  # fmt: skip
    (row,) = noted(builder, record_param_comms=told).table("collectives").to_pylist()
    assert (row["name"], row["bytes"], row["input_splits"]) == ("all_to_all", 32, "[5, 3]")
    waiting = noted(
        TraceBuilder().span("record_param_comms", 0, 1), record_param_comms={**told, "call": "wait"}
    )
    assert waiting.table("collectives").num_rows == 0


def test_a_program_of_one_process_has_none():
    assert TraceBuilder().span("aten::add", 0, 5).build().table("collectives").num_rows == 0


@pytest.mark.parametrize("operator", CALLS)
@pytest.mark.parametrize(
    ("told", "dims", "concrete"),
    [
        ("", "", ""), ("{", "[", "x"), ("[]", "{}", "3"), ('{"arguments": 3}', "[[3]]", "[]"),
        ('{"arguments": []}', "", ""), ('{"arguments": [null, [1, 2], "x", true]}', "", ""),
        ("", '[[["..."]], [2, "?"]]', '["1", "x", null]'),
    ],
)  # fmt: skip
def test_odd_facts_are_unknown_facts(operator, told, dims, concrete):
    facts = facts_of_call(operator, told, dims, concrete)
    assert facts.name == CALLS[operator][0]
    assert facts.bytes_of(facts.input_elements) >= -1


@pytest.mark.parametrize("told", ["", "[]", "{}", '{"call": 3}', "nonsense"])
def test_what_describes_no_call_is_none(told):
    assert facts_of_description(told) is None


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TOLD = {"call": "allreduce", "group": "0", "description": "default_pg", "size": 4, "rank": 1, "ranks": "[0, 1, 2, 3]",
        "type": "Float", "item_bytes": 4, "in_elements": 100, "out_elements": 100}  # fmt: skip


def called(name="c10d::allreduce_", *, told=None, kernel=NCCL):
    """A call as a device's backend carries it out: a description, a range, and a kernel while another computes."""
    builder = TraceBuilder()
    builder.thread(os_tid=70)
    communication, compute = builder.stream(21), builder.stream(7)
    if name:
        builder.span(name, 0, 90)
    builder.span("record_param_comms", 10, 70, facts=told).annotation("nccl:all_reduce", 20, 40)
    builder.runtime("cudaLaunchKernelExC", 30, 10, correlation=1)
    builder.kernel(kernel, 100, 200, stream=communication, correlation=1)
    builder.kernel("gemm", 250, 100, stream=compute)
    builder.device_annotation("nccl:all_reduce", 100, 200, stream=communication)
    return builder


def facts(builder, *names):
    (row,) = builder.build().table("collectives").to_pylist()
    return tuple(row[name] for name in names)


def test_the_kernel_of_a_device_is_the_transfer_and_what_runs_beside_it_hides_it():
    (row,) = called(told=TOLD).build().table("collectives").to_pylist()
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {
        "span": 0, "name": "all_reduce", "backend": "nccl", "group": "0", "group_description": "default_pg", "group_size": 4,
        "group_ranks": "[0, 1, 2, 3]", "group_rank": 1, "dtype": "float32", "bytes": 400, "input_bytes": 400,
        "output_bytes": 400, "input_elements": 100, "output_elements": 100, "reduction": "SUM", "start_ns": 0,
        "call_ns": 90, "transfers": 1, "transfer_span": 4, "transfer_start_ns": 100, "transfer_ns": 200,
        "overlapped_ns": 50, "exposed_ns": 150, "gb_per_s": 2.0, "bus_gb_per_s": 3.0, "device": "cuda:0", "stream": 21,
        "queued_ns": 100, "os_tid": 70, "phase": "forward", "process": 4242,
    }  # fmt: skip


def test_a_call_that_nothing_describes_is_told_by_its_range_and_its_kernel():
    assert facts(called(""), "name", "dtype", "reduction", "transfers", "os_tid") == (
        "all_reduce", "float32", "SUM", 1, 70,
    )  # fmt: skip


def test_what_a_source_says_of_a_kernel_counts_before_its_name():
    builder = called("").kernel("ncclDevKernel_Generic(x)", 400, 20, facts=TOLD)
    rows = builder.build().table("collectives").to_pylist()
    assert [(row["name"], row["bytes"], row["group"], row["call_ns"], row["os_tid"]) for row in rows] == [
        ("all_reduce", None, None, 70, 70), ("all_reduce", 400, "0", None, None),
    ]  # fmt: skip
    assert rows[1]["span"] == rows[1]["transfer_span"]


def test_a_kernel_that_says_nothing_is_of_an_unknown_call():
    builder = TraceBuilder().kernel("ncclDevKernel_Generic(x)", 0, 20)
    assert facts(builder, "name", "backend", "phase", "queued_ns") == ("unknown", "nccl", None, None)


def test_a_description_of_nothing_is_no_call():
    assert TraceBuilder().span("record_param_comms", 0, 5).build().table("collectives").num_rows == 0


def test_a_range_of_a_devices_backend_only_asks_and_is_no_transfer():
    builder = TraceBuilder().span("c10d::broadcast_", 0, 50).annotation("nccl:broadcast", 10, 20)
    builder.kernel("gemm", 0, 10)
    assert facts(builder, "name", "backend", "transfers", "transfer_ns") == ("broadcast", "nccl", 0, None)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", ("all_reduce", "SUM", "float32")),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", ("reduce_scatter", "SUM", "bfloat16")),
        ("ncclDevKernel_AllGather_RING_LL(x)", ("all_gather", "", "")),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", ("send_recv", "", "")),
        ("ncclDevKernel_Broadcast_RING_LL(x)", ("broadcast", "", "")),
        ("ncclDevKernel_Reduce_Max_f16_RING_LL(x)", ("reduce", "MAX", "float16")),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", ("all_reduce", "", "")),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", ("unknown", "", "")),
        ("", ("unknown", "", "")),
    ],
)
def test_kernels_say_by_their_names_what_they_do(name, known):
    found = facts_of_kernel(name)
    assert (found.name, found.reduction, found.dtype) == known


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nccl:_all_gather_base", ("nccl", "all_gather")), ("nccl:send 0->1", ("nccl", "send")),
        ("gloo:all_reduce", ("gloo", "all_reduce")), ("odd", ("odd", "")),
    ],
)  # fmt: skip
def test_ranges_say_backend_and_call(text, found):
    assert facts_of_range(text) == found


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "dispatch"),
        ("void deep_ep::internode_ll::combine<true, 4>(void*, int)", "combine"),
        ("void uccl::ep::internode::notify_dispatch<false, 2>(int const*)", "dispatch"),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::CodecQ4>(half const*)", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void c10d::symmetric_memory::(anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16>(c10::BFloat16**)",
         "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, half>(int)", "all_reduce"),
    ],
)  # fmt: skip
def test_kernels_of_custom_collectives_have_a_name_and_are_communication(kernel, name):
    trace = TraceBuilder().kernel(kernel, 0, 20).build()
    assert trace.table("collectives")["name"].to_pylist() == [name]
    assert trace.table("kernels")["category"].to_pylist() == ["communication"]


@pytest.mark.parametrize(
    "kernel",
    ["void cutlass::epilogue::step::dispatch(x)", "void deep::epilogue(x)", "triton_red_fused_reduce_0"],
)
def test_kernels_that_only_sound_alike_compute(kernel):
    assert TraceBuilder().kernel(kernel, 0, 20).build().table("kernels")["category"].to_pylist() == [
        "compute"
    ]


@pytest.mark.parametrize("spelt", ["long", "long int", "Long", "long long"])
def test_types_as_any_compiler_spells_them(spelt):
    assert type_named(spelt) == ("int64", 8)


def test_info_counts_the_calls_of_the_table():
    builder = called("")
    builder.kernel("ncclDevKernel_AllGather(x)", 400, 20)
    trace = builder.build()
    rows = trace.table("collectives").num_rows
    assert rows > len(trace.columns("collectives"))
    assert f"{rows} collectives" in contents(trace.overview())
