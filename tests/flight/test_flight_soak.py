"""A flight recorder that stays on: nothing grows with the number of steps and captures."""

import json
import os

from tests.support import warm_python
from tests.support.effort import times

PROGRAM = """
import json, os, sys
import torch, kinetoscope
steps, captures = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
value = torch.ones(4)

def in_use():
    pages = int(open('/proc/self/statm').read().split()[1])
    return pages * os.sysconf('SC_PAGESIZE'), len(os.listdir('/proc/self/fd'))

with kinetoscope.leave_on(keep='4MiB', folder='jobs', on=()) as recorder:
    found = []
    every = max(steps // max(captures, 1), 1)
    for number in range(steps):
        recorder.step()
        value.add(1)
        if number % every == 0:
            recorder.capture(1)
        if number in (steps // 2, steps - 1):
            found.append(in_use())
    path = recorder.status().ring
    size = path.stat().st_size
    files = sum(len(names) for _, _, names in os.walk('jobs'))
print(json.dumps([found, size, files]))
"""


def test_memory_files_and_descriptors_stay_flat(tmp_path):
    steps = times(2_500, 1_000_000)
    done = warm_python.run(
        "-c", PROGRAM, str(steps), str(times(25, 10_000)), cwd=tmp_path, env={**os.environ}
    )
    assert (done.returncode, done.stderr) == (0, "")
    ((half_bytes, half_files), (end_bytes, end_files)), ring_bytes, files = json.loads(done.stdout)
    assert end_files == half_files
    assert ring_bytes <= 4 << 20
    # The ring, the log of steps, and the last captures, each with what it says.
    assert files <= 2 + 2 * 24
    # Less than a byte for each step, beside what an allocator keeps.
    assert end_bytes - half_bytes <= (8 << 20) + steps
