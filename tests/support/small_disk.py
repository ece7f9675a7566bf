"""A small disk of its own, where this user may mount one."""

import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def tmpfs(folder, options):
    """A disk of its own, where this user may mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "kinetoscope", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"this user cannot mount a disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
