"""Imported by every Python at its start while `kinetoscope run --children` has this folder first in PYTHONPATH.

Pythons of any age read this file: nothing in it is newer than Python 2.6.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_run = os.environ.get("KINETOSCOPE_CHILDREN")
if sys.version_info >= (3, 7) and _run:
    try:
        _path = os.path.join(os.path.dirname(_folder), "child_hook.py")
        _loader = type(__loader__)("kinetoscope_child_hook", _path)  # type: ignore[name-defined]
        _names = {"__name__": _loader.name, "__file__": _path, "__loader__": _loader}
        exec(_loader.get_code(_loader.name), _names)
        _names["begin"](_run, True)
    except Exception as error:
        sys.stderr.write("kinetoscope: this process is not recorded: %s\n" % error)
# Now the module that Python would have imported without this one.
sys.path[:] = [entry for entry in sys.path if entry != _folder]
_this = sys.modules.pop(__name__, None)
try:
    import sitecustomize  # type: ignore[import-not-found]
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules[__name__] = _this  # type: ignore[assignment]
