"""Collectives in Chrome traces."""

import json

from tests.support.kineto_text import kernel, op, opened, spans


def test_what_torch_says_of_calls_between_ranks_is_in_the_table():
    said = {
        "Collective name": "allreduce", "In msg nelems": 10, "Out msg nelems": 10, "Group size": 8, "dtype": "BFloat16",
        "In split size": "[]", "Out split size": "[1, 2]", "Process Group Name": "0", "Rank": 3,
        "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1, ...]", "Dst Rank": 2,
    }  # fmt: skip
    trace = opened(
        op("record_param_comms", 0, 9, **said), kernel("ncclDevKernel", 20, 5, **said), op("aten::add", 30, 1)
    )
    held = trace.columns("collectives")
    texts = spans(trace)
    assert [texts[row] for row in held["span"]] == ["record_param_comms", "ncclDevKernel"]
    assert json.loads(trace.strings[held["facts"][0]]) == {
        "call": "allreduce", "group": "0", "description": "default_pg", "type": "BFloat16", "ranks": "[0, 1, ...]",
        "rank": 3, "size": 8, "in_elements": 10, "out_elements": 10, "item_bytes": 2, "out_splits": [1, 2], "peer": 2,
    }  # fmt: skip
    row = trace.table("collectives").to_pylist()[0]
    assert (row["name"], row["group_size"], row["dtype"], row["bytes"]) == ("all_reduce", 8, "bfloat16", 20)
