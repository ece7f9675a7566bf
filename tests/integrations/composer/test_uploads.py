import os
import threading
import warnings

import fsspec
import pytest

from kinetoscope.integrations import composer
from kinetoscope.integrations.composer import Timestamp, TraceFiles
from tests.integrations.composer.profilers import a_trace

NAME = "rank{rank}.{batch}.json"


class Logger:
    """Takes files as a trainer's logger does, after some failures."""

    def __init__(self, failures=0):
        self.taken = []
        self.asked = 0
        self._failures = failures

    def upload_file(self, remote_file_name, file_path, *, overwrite=False):
        self.asked += 1
        if self.asked <= self._failures:
            raise OSError("no route to the store")
        with open(file_path, encoding="utf-8") as file:
            self.taken.append((remote_file_name, file_path, overwrite, len(file.read())))


@pytest.fixture(autouse=True)
def memory():
    """The store of memory:// URLs, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def failing(memory, monkeypatch):
    """Lets the next uploads to memory:// fail: each with the exception that is put into the list."""
    errors = []
    put_file = type(memory).put_file

    def put_or_fail(self, *arguments, **options):
        if errors:
            raise errors.pop(0)
        return put_file(self, *arguments, **options)

    monkeypatch.setattr(type(memory), "put_file", put_or_fail)
    return errors


def files_for(remote, logger=None, **options):
    files = TraceFiles("run", NAME, remote, **options)
    files.start("run", logger)
    return files


def uploaded(files, trace, *batches):
    """Saves a trace after some batches, waits for what becomes of the uploads, and returns the last path."""
    for batch in batches:
        path = files.save(trace, Timestamp(batch=batch))
    files.close()
    return path


def here():
    return sorted(os.listdir("run"))


# ------------------------------------------------------------------------------------------------------------- stores


def test_a_file_url_is_a_copy_in_another_folder(tmp_path, small_trace):
    path = uploaded(files_for(f"file://{tmp_path}/far/{{run_name}}/{NAME}"), small_trace, 4)
    assert (tmp_path / "far/run/rank0.4.json").read_bytes() == path.read_bytes()


def test_a_memory_url_holds_every_trace_and_its_memory_timeline(memory, small_trace):
    files = files_for("memory://store/{run_name}/{batch}.json", use_gzip=True)
    paths = [files.save(small_trace, Timestamp(batch=batch)) for batch in range(3)]
    files.close()
    assert [memory.cat(f"/store/run/{batch}.json.gz") for batch in range(3)] == [
        path.read_bytes() for path in paths
    ]


def test_a_memory_timeline_is_uploaded_under_its_own_name(memory):
    options = {"memory_filename": "m{batch}.html", "memory_remote_file_name": "memory://store/m{batch}.html"}
    uploaded(files_for(None, **options), a_trace(None), 2)
    assert memory.find("/") == ["/store/m2.html"]


def test_an_s3_server_gets_the_traces(s3, small_trace):
    path = uploaded(files_for("s3://traces/{run_name}/" + NAME, num_traces_to_keep=1), small_trace, 0, 1)
    assert sorted(s3.find("traces")) == ["traces/run/rank0.0.json", "traces/run/rank0.1.json"]
    assert s3.cat("traces/run/rank0.1.json") == path.read_bytes()
    assert here() == ["rank0.1.json"]


@pytest.mark.usefixtures("slept")
def test_a_bucket_that_is_not_there_is_not_made(s3, small_trace):
    failure = r"run/rank0.0.json was not uploaded as s3://no-such-bucket/rank0.0.json in 3 attempts \("
    with pytest.warns(UserWarning, match=failure):
        uploaded(files_for("s3://no-such-bucket/" + NAME), small_trace, 0)
    assert s3.ls("") == ["traces"]
    assert here() == ["rank0.0.json"]


def test_a_plain_name_without_a_logger_is_no_upload(memory, small_trace):
    uploaded(files_for("/traces/" + NAME), small_trace, 0)
    assert here() == ["rank0.0.json"]
    assert memory.find("/") == []


# ------------------------------------------------------------------------------------------------------------- logger


def test_a_logger_gets_the_plain_name_without_leading_slashes(small_trace):
    logger = Logger()
    path = uploaded(files_for("//{run_name}/" + NAME, logger, overwrite=True), small_trace, 4)
    assert logger.taken == [("run/rank0.4.json", "run/rank0.4.json", True, path.stat().st_size)]


def test_no_remote_name_is_no_upload_through_the_logger_either(small_trace):
    logger = Logger()
    uploaded(files_for(None, logger), small_trace, 0)
    assert logger.asked == 0


def test_a_url_says_where_whatever_logger_there_is(memory, small_trace):
    logger = Logger()
    uploaded(files_for("memory://store/a.json", logger), small_trace, 0)
    assert (logger.asked, memory.find("/")) == (0, ["/store/a.json"])


def test_a_logger_that_fails_is_asked_again(small_trace, slept):
    logger = Logger(failures=2)
    uploaded(files_for(NAME, logger), small_trace, 0)
    assert [name for name, *_ in logger.taken] == ["rank0.0.json"]
    assert slept == [0.5, 2.0]


@pytest.mark.usefixtures("slept")
def test_a_logger_that_goes_on_failing_is_a_warning_and_the_file_stays(small_trace):
    logger = Logger(failures=99)
    files = files_for(NAME, logger, num_traces_to_keep=0)
    failure = r"was not uploaded as rank0.0.json in 3 attempts \(OSError: no route to the store\)"
    with pytest.warns(UserWarning, match=failure):
        files.save(small_trace, Timestamp())
    assert (logger.asked, here(), files.saved_traces) == (3, ["rank0.0.json"], [])


# ----------------------------------------------------------------------------------------------------------- failures


def test_an_upload_that_fails_is_tried_again(memory, failing, small_trace, slept):
    failing[:] = [OSError("reset"), TimeoutError("late")]
    uploaded(files_for("memory://store/" + NAME), small_trace, 0)
    assert memory.find("/") == ["/store/rank0.0.json"]
    assert slept == [0.5, 2.0]


@pytest.mark.usefixtures("slept")
@pytest.mark.parametrize("kept", [0, 1, -1])
def test_after_the_last_attempt_there_is_a_warning_and_the_local_file_stays(
    kept, memory, failing, small_trace
):
    failing[:] = [OSError("reset")] * 3
    files = files_for("memory://store/" + NAME, num_traces_to_keep=kept)
    failure = r"run/rank0.0.json was not uploaded as memory://store/rank0.0.json in 3 attempts \(OSError: reset\). The file stays"
    with pytest.warns(UserWarning, match=failure):
        uploaded(files, small_trace, 0)
    uploaded(files, small_trace, 1)  # fares better
    assert memory.find("/") == ["/store/rank0.1.json"]
    assert here() == ["rank0.0.json"] + ([] if kept == 0 else ["rank0.1.json"])
    assert len(files.saved_traces) == (2 if kept < 0 else kept)


def test_none_are_kept_but_each_is_uploaded_before_it_goes(memory, small_trace):
    files = files_for("memory://store/" + NAME, num_traces_to_keep=0)
    uploaded(files, small_trace, 0, 1, 2)
    assert memory.find("/") == [f"/store/rank0.{batch}.json" for batch in range(3)]
    assert (here(), files.saved_traces) == ([], [])


def test_what_is_being_uploaded_is_not_deleted(memory, monkeypatch, small_trace):
    may_go_on, seen = threading.Event(), []
    put_file = type(memory).put_file

    def put_slowly(self, local, remote, **options):
        assert may_go_on.wait(60)
        seen.append(os.path.exists(local))
        return put_file(self, local, remote, **options)

    monkeypatch.setattr(type(memory), "put_file", put_slowly)
    files = files_for("memory://store/" + NAME, num_traces_to_keep=1)
    for batch in range(3):
        files.save(small_trace, Timestamp(batch=batch))
    assert here() == [f"rank0.{batch}.json" for batch in range(3)]  # training goes on, nothing is lost
    assert [moment.batch for moment, _ in files.saved_traces] == [2]
    may_go_on.set()
    files.close()
    assert (seen, here()) == ([True] * 3, ["rank0.2.json"])


def test_a_store_that_hangs_does_not_keep_the_job_from_ending(memory, monkeypatch, small_trace):
    may_go_on = threading.Event()
    monkeypatch.setattr(type(memory), "put_file", lambda *_arguments, **_options: may_go_on.wait(60))
    monkeypatch.setattr(composer.files, "PATIENCE_S", 0.01)
    files = files_for("memory://store/" + NAME, num_traces_to_keep=0)
    files.save(small_trace, Timestamp(batch=0))
    files.save(small_trace, Timestamp(batch=1))
    with pytest.warns(UserWarning, match=r"2 uploads have not finished after 0.01 s .* The files stay"):
        files.close()
    assert here() == ["rank0.0.json", "rank0.1.json"]
    senders = [thread for thread in threading.enumerate() if thread.name.startswith("kinetoscope-upload")]
    assert senders
    assert all(sender.daemon for sender in senders)
    may_go_on.set()
    for sender in senders:
        sender.join(60)
    assert here() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_waits_for_nothing_of_its_parent(memory, monkeypatch, small_trace):
    may_go_on = threading.Event()
    monkeypatch.setattr(type(memory), "put_file", lambda *_arguments, **_options: may_go_on.wait(60))
    monkeypatch.setattr(composer.files, "PATIENCE_S", 5)
    files = files_for("memory://store/" + NAME, num_traces_to_keep=0)
    files.save(small_trace, Timestamp(batch=0))
    child = os.fork()
    if child == 0:
        # Here the thread is not.
        failed = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                files.close()
            failed = 0
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    assert here() == ["rank0.0.json"]  # it is still on its way
    may_go_on.set()
    files.close()
    assert here() == []


def test_a_remote_file_is_replaced_only_if_asked_for(memory, small_trace, slept):
    memory.pipe("/store/rank0.0.json", b"precious")
    failure = r"\(FileExistsError: there is a file of that name already; overwrite=True"
    with pytest.warns(UserWarning, match=failure):
        uploaded(files_for("memory://store/" + NAME), small_trace, 0)
    assert (memory.cat("/store/rank0.0.json"), slept) == (b"precious", [])
    path = uploaded(files_for("memory://store/" + NAME, overwrite=True), small_trace, 0)
    assert memory.cat("/store/rank0.0.json") == path.read_bytes()


def test_what_this_run_uploaded_may_be_replaced(memory, small_trace):
    uploaded(files_for("memory://store/latest.json"), small_trace, 0, 1)
    assert memory.find("/") == ["/store/latest.json"]


def test_closing_twice_and_saving_again_are_fine(memory, small_trace):
    files = files_for("memory://store/" + NAME)
    files.close()
    files.close()
    uploaded(files, small_trace, 7)
    assert memory.find("/") == ["/store/rank0.7.json"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kinetoscope-upload")]
