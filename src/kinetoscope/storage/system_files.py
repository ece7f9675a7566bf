"""Small files of the system, such as those of /proc."""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The file with the number of this start of the machine."""


def text_of(path: Path) -> str:
    """The stripped text of a small file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
