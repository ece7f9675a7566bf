"""Merges the traces of ranks, of one cycle or of many, into one file.

python -m kinetoscope.integrations.composer.json_trace_merger -o merged.json run/traces/*.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kinetoscope._errors import KinetoscopeError
from kinetoscope.integrations.composer.merging import merge_traces


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge the files that the command line names; the exit code is 1 if they cannot be merged."""
    parser = argparse.ArgumentParser(
        prog="python -m kinetoscope.integrations.composer.json_trace_merger",
        description="Merge the traces of ranks and cycles into one file.",
    )
    parser.add_argument("input_files", nargs="+", help="the traces")
    parser.add_argument(
        "-o", "--output_file", required=True, help="where to write; the suffix names the format"
    )
    parsed = parser.parse_args(arguments)
    try:
        merge_traces(parsed.output_file, *parsed.input_files)
    except (KinetoscopeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
