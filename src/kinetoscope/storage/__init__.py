"""`.ktrace` files, recordings, Parquet and Arrow files, and the sources of their bytes."""

__all__ = [
    "appended_rows",
    "atomic_write",
    "byte_source",
    "cache",
    "incident_files",
    "ktrace",
    "live_recording",
    "recording",
    "recording_parts",
    "system_files",
    "table_files",
    "unpacking",
]
