"""Tables as the server sends them with what they hold, which the page's own reading of them is tested with.

`python -m tests.support.arrow_vectors` writes the file anew.
"""

import base64
import json
from pathlib import Path

import pyarrow as pa

from kinetoscope.viewer.server.routes import encoded

PATH = Path(__file__).parents[1] / "golden" / "viewer_arrow.json"


def tables():
    """A table of every kind of column, with and without gaps; one without rows; one without columns."""
    texts = ["ein Wört", "", "<b>", "𝄞"]
    columns = {
        "uint8": pa.array([0, 1, 255, 7], pa.uint8()),
        "int16": pa.array([-(2**15), 0, 1, 2**15 - 1], pa.int16()),
        "int32": pa.array([-(2**31), 0, 1, 2**31 - 1], pa.int32()),
        "int64": pa.array([-(2**53), 0, 1, 2**53], pa.int64()),
        "uint64": pa.array([0, 1, 2, 2**53], pa.uint64()),
        "float": pa.array([0.5, -1.25, 0.0, 3e30], pa.float64()),
        "single": pa.array([0.5, -1.25, 0.0, 2.0], pa.float32()),
        "truth": pa.array([True, False, False, True]),
        "text": pa.array(texts),
        "coded": pa.array(texts).dictionary_encode(),
        "small codes": pa.DictionaryArray.from_arrays(pa.array([1, 0, 0, 1], pa.int8()), ["b", "a"]),
        "int32 gaps": pa.array([None, 1, None, 3], pa.int32()),
        "int64 gaps": pa.array([1, None, None, -3], pa.int64()),
        "float gaps": pa.array([None, None, None, None], pa.float64()),
        "truth gaps": pa.array([None, True, False, None]),
        "text gaps": pa.array([None, "a", None, "ü"]),
        "coded gaps": pa.array(["a", None, "b", None]).dictionary_encode(),
    }
    fields = [
        pa.field(
            name,
            values.type,
            metadata={"unit": "ns", "meaning": f"What {name} is."} if name == "int64" else None,
        )
        for name, values in columns.items()
    ]
    whole = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, {"all": "no"}))
    many = pa.table({"row": pa.array(range(1000), pa.int32()), "odd": [row % 2 == 1 for row in range(1000)]})
    return {
        "every kind": whole,
        "a part": whole.slice(1, 2),
        "many rows": many,
        "no rows": whole.slice(0, 0),
        "no columns": pa.table({}),
    }


def vectors():
    """Each table as a stream and as JSON."""
    return [
        {
            "name": name,
            "stream": base64.b64encode(encoded(table).body).decode(),
            "rows": table.num_rows,
            "columns": table.to_pydict(),
        }
        for name, table in tables().items()
    ]


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), separators=(",", ":")) + "\n", encoding="utf-8")
