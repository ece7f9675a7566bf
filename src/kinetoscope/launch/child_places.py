"""What a run keeps in its folder for the processes it follows, and how they read what was asked for."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

from kinetoscope._errors import ArgumentError
from kinetoscope._version import __version__
from kinetoscope.launch.options import Wanted

_WANTED = "run.wanted"
_SITE = "python"
_KEPT = ("shapes", "memory", "stack", "modules", "engine", "ring_bytes", "steps")

# For every Python there is, also those that cannot follow: nothing in it is newer than Python 2.6.
_SITECUSTOMIZE = """\
# Made by "kinetoscope run --children" for the time of one run. It leads to nothing once the run is over.
import sys

_here = {site!r}
if sys.version_info >= (3, 11):
    try:
        _loader = type(__loader__)
        _names = {{"__name__": "kinetoscope_child_start", "__file__": {start!r}}}
        exec(_loader(_names["__name__"], _names["__file__"]).get_code(_names["__name__"]), _names)
        _names["begin"]({folder!r}, _here, {version!r}, _loader)
    except Exception as error:
        sys.stderr.write("kinetoscope: a process is not recorded: %s\\n" % error)
sys.path[:] = [entry for entry in sys.path if entry != _here]
# The one that this Python would have run without us.
_this = sys.modules.pop(__name__, None)
try:
    import sitecustomize
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules[__name__] = _this
"""


def site_folder(folder: Path) -> str:
    """The folder that Pythons look into first."""
    return str(folder / _SITE)


def prepare(folder: Path, wanted: Wanted) -> None:
    """Make the folder of a run, which nobody else can write to: every Python that is followed runs what is in it.

    Raises:
        ArgumentError: The folder cannot be named in `PYTHONPATH`, holds something that is not ours, or others could
            put something into it.
        OSError: It cannot be made.
    """
    if os.pathsep in str(folder):
        raise ArgumentError(
            f"--children: {str(folder)!r} has a {os.pathsep!r} in it, and PYTHONPATH could not name it: choose another "
            "place with -o PREFIX."
        )
    if os.path.lexists(folder):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            raise ArgumentError(
                f"--children: {folder} is a link, no folder, or somebody else's, and every process that is followed "
                "would run what is in it: remove it, or use -o."
            )
        if any(not _is_ours(entry) for entry in folder.iterdir()):
            raise ArgumentError(
                f"--children keeps its files in {folder}, which holds something else: move it, or use -o."
            )
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    around = folder.parent.stat().st_mode
    if around & stat.S_IWOTH and not around & stat.S_ISVTX:
        raise ArgumentError(
            f"--children: everybody can replace what is in {folder.parent}, and every process that is followed would "
            "run it: use -o with a folder of your own, or take that right away (chmod o-w)."
        )
    # Who was quicker to make one of that name is refused.
    folder.mkdir(mode=0o700)
    made = folder.lstat()
    if made.st_uid != os.getuid() or stat.S_IMODE(made.st_mode) != 0o700:
        raise ArgumentError(
            f"--children: {folder} cannot be kept from others on this file system, and every process that is followed "
            "would run what is in it: use -o with another folder."
        )
    (folder / _SITE).mkdir()
    start = str(Path(__file__).with_name("child_start.py"))
    script = _SITECUSTOMIZE.format(
        site=site_folder(folder), start=start, folder=str(folder), version=__version__
    )
    (folder / _SITE / "sitecustomize.py").write_text(script, encoding="utf-8")
    told = {name: getattr(wanted, name) for name in _KEPT}
    (folder / _WANTED).write_text(json.dumps(told), encoding="utf-8")


def _is_ours(path: Path) -> bool:
    """Whether an earlier run, which was killed or left running children behind, may have made this."""
    return path.name in (_SITE, _WANTED) or path.suffix in (".json", ".recording", ".ktrace")


def stop_following(folder: Path) -> None:
    """Have Pythons that start from now on find nothing."""
    shutil.rmtree(folder / _SITE, ignore_errors=True)
    (folder / _WANTED).unlink(missing_ok=True)


def read_wanted(folder: Path) -> Wanted:
    """What the user asked for.

    Raises:
        OSError: The run is over.
        ValueError: The file is damaged.
    """
    told = json.loads((folder / _WANTED).read_text(encoding="utf-8"))
    steps = told["steps"]
    return Wanted(**{**told, "steps": None if steps is None else tuple(steps)}, prefix=folder / "child")
