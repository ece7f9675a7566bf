"""Our threads are found, and the program's are not."""

import json
import threading
import time

from kinetoscope.flight.own_threads import OwnThreads, own_threads
from tests.support import warm_python


def test_the_programs_threads_are_not_ours():
    found = []
    thread = threading.Thread(target=lambda: found.append(own_threads()), name="worker")
    thread.start()
    thread.join()
    assert thread.native_id not in found[0]
    assert threading.get_native_id() not in found[0]


def test_the_time_of_a_thread_of_ours_is_read():
    begin, end = threading.Event(), threading.Event()
    told = threading.Event()

    def work():
        begin.wait()
        until = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until:
            pass
        told.set()
        end.wait()

    thread = threading.Thread(target=work, name="kinetoscope-test")
    thread.start()
    try:
        clocks = OwnThreads()
        assert thread.native_id in own_threads()
        # What threads do once, when they begin, does not count.
        assert [clocks.read(0), clocks.read(1_000_000_000)] == [None, None]
        begin.set()
        told.wait()
        assert clocks.read(2_000_000_000) >= 0.02
        assert not clocks.is_due(3_999_999_999)
        assert clocks.is_due(4_000_000_000)
    finally:
        begin.set()
        end.set()
        thread.join()


def test_the_native_threads_of_a_flight_recorder_are_found(tmp_path):
    done = warm_python.run(
        "-c",
        "import json, threading, kinetoscope\n"
        "from kinetoscope.flight.own_threads import own_threads\n"
        "with kinetoscope.leave_on(keep='8MiB', folder='jobs'):\n"
        "    ours = own_threads()\n"
        "    names = sorted(open(f'/proc/self/task/{one}/comm').read().strip() for one in ours)\n"
        "    print(json.dumps([names, threading.get_native_id() in ours]))\n",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    names, main_is = json.loads(done.stdout)
    assert not main_is
    assert {"kinetoscope", "kscope sampler", "kscope steps"} <= set(names)
