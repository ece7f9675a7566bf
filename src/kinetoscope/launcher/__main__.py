"""The process that `kinetoscope.launch` starts: `python -m kinetoscope.launcher OPTIONS [-m] PROGRAM ARGS...`."""

import sys

from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.program import Program
from kinetoscope.launcher.run import ProgramRun

if __name__ == "__main__":
    _options, *_words = sys.argv[1:]
    _is_module = _words[0] == "-m"
    _target, *_arguments = _words[_is_module:]
    ProgramRun(Program(_target, tuple(_arguments), _is_module), LaunchOptions.from_json(_options)).execute()
