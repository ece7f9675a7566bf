"""The version of Kinetoscope, in a separate module so that it can be imported without anything else."""

import sys

__version__ = "0.1.0"
# Keeps the names in it alive, see `_import_aside`.
_CODE = sys._getframe().f_code
