"""What the system tells in small files, such as those of /proc."""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The file with the number of this start of the machine."""


def text_of(path: Path) -> str:
    """The text of a small file without what is blank around it; empty if there is none, or it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
