"""The observer's life, and what its files hold. Each test leaves no observer registered in the process."""

import gzip
import os
import textwrap

import pytest
import torch
from torch.profiler import ExecutionTraceObserver as TorchObserver

from kinetoscope import ArgumentError, ExecutionTraceObserver, StateError
from kinetoscope.formats.execution_trace.read import read_execution_trace
from tests.support import warm_python
from tests.support.strict_json import read_strictly

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.fixture
def observer():
    made = ExecutionTraceObserver()
    yield made
    made.unregister_callback()


def names(path):
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rb") as file:
        return [node["name"] for node in read_strictly(file.read().decode())["nodes"]]


def run(program, folder):
    """Runs a program in a process of its own, in a folder, where warnings are errors."""
    strict = "import warnings; warnings.simplefilter('error')\n"
    return warm_python.run("-c", strict + textwrap.dedent(program), cwd=folder)


def test_an_observer_from_registration_to_finished_file(observer, tmp_path):
    path = tmp_path / "et.json"
    assert (observer.is_registered, observer.is_running()) == (False, False)
    assert observer.register_callback(str(path)) is observer
    assert (observer.is_registered, observer.is_running()) == (True, False)
    assert observer.get_output_file_path() == str(path)
    x = torch.ones(2)
    observer.start()
    observer.start()
    assert observer.is_running()
    x.add(1.0)
    observer.stop()
    observer.stop()
    assert not observer.is_running()
    x.sin()
    observer.start()
    x.cos()
    observer.unregister_callback()
    assert (observer.is_registered, observer.is_running()) == (False, False)
    found = names(path)
    assert {"aten::add", "aten::cos"} <= set(found)
    assert "aten::sin" not in found
    assert found[-1] == "[pytorch|profiler|execution_trace|process]"


def test_it_has_all_public_names_of_torchs():
    public = {name for name in dir(TorchObserver) if not name.startswith("_")}
    assert public <= set(dir(ExecutionTraceObserver))


def test_a_second_registration_adds_nothing(observer, tmp_path):
    observer.register_callback(tmp_path / "one.json")
    assert observer.register_callback(tmp_path / "two.json") is observer
    assert observer.get_output_file_path() == str(tmp_path / "one.json")
    assert not (tmp_path / "two.json").exists()


def test_it_can_be_registered_again_for_another_file(observer, tmp_path):
    for name in ("one.json", "two.json"):
        observer.register_callback(tmp_path / name)
        observer.start()
        torch.ones(2).sin()
        observer.cleanup()
    assert (
        names(tmp_path / "one.json").count("aten::sin")
        == names(tmp_path / "two.json").count("aten::sin")
        == 1
    )


def test_unregistered_it_does_nothing(observer):
    observer.start()
    assert not observer.is_running()
    observer.stop()
    observer.unregister_callback()
    with pytest.raises(StateError, match="register_callback"):
        observer.get_output_file_path()


def test_one_observer_at_a_time(observer, tmp_path):
    observer.register_callback(tmp_path / "one.json")
    other = ExecutionTraceObserver()
    with pytest.warns(UserWarning, match="already has a registered ExecutionTraceObserver"):
        other.register_callback(tmp_path / "two.json")
    assert not other.is_registered
    observer.unregister_callback()
    assert other.register_callback(tmp_path / "two.json").is_registered
    other.unregister_callback()


def test_torchs_own_observer_is_noticed(observer, tmp_path):
    theirs = TorchObserver().register_callback(str(tmp_path / "theirs.json"))
    try:
        with pytest.warns(UserWarning, match="torch's own ExecutionTraceObserver"):
            observer.register_callback(tmp_path / "ours.json")
        assert not observer.is_registered
        assert not (tmp_path / "ours.json").exists()
    finally:
        theirs.unregister_callback()


@pytest.mark.parametrize("path", [None, 3, b"\xff", "no/such/folder/et.json", "."])
def test_a_path_that_cannot_be_is_refused(observer, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match="not valid|cannot be written"):
        observer.register_callback(path)
    assert not observer.is_registered


def test_a_relative_path_is_that_of_the_working_directory_at_its_registration(
    observer, tmp_path, monkeypatch
):
    (tmp_path / "later").mkdir()
    for name in ("et.json", "et.json.gz"):
        monkeypatch.chdir(tmp_path)
        observer.register_callback(name).start()
        assert observer.get_output_file_path() == name
        torch.ones(2)
        monkeypatch.chdir(tmp_path / "later")
        observer.unregister_callback()
        assert len(read_execution_trace(tmp_path / name).nodes["name"]) > 0
    assert [*(tmp_path / "later").iterdir()] == []


@pytest.mark.parametrize("name", ['"quoted"', "C:\\new", "two\nlines", "é 💥", "\x01"])
def test_names_of_ranges_come_back_as_they_were(observer, tmp_path, name):
    observer.register_callback(tmp_path / "et.json").start()
    with torch.profiler.record_function(name, 'args "é"'):
        torch.ones(2)
    observer.unregister_callback()
    trace = read_execution_trace(tmp_path / "et.json")
    assert name in trace.nodes["name"]
    assert '["args \\"é\\""]' in trace.nodes["inputs"]
    assert trace.lost == {}


def test_gz_is_compressed_and_nothing_else_is_left(observer, tmp_path):
    observer.register_callback(tmp_path / "et.json.gz").start()
    torch.ones(2)
    observer.unregister_callback()
    assert "aten::ones" in names(tmp_path / "et.json.gz")
    assert os.listdir(tmp_path) == ["et.json.gz"]


def test_a_failed_compression_leaves_nothing_behind(observer, tmp_path, monkeypatch):
    observer.register_callback(tmp_path / "et.json.gz").start()
    monkeypatch.setattr(gzip.GzipFile, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        observer.unregister_callback()
    assert os.listdir(tmp_path) == []
    assert not observer.is_registered


def test_a_lost_observer_finishes_its_file(tmp_path):
    made = ExecutionTraceObserver().register_callback(tmp_path / "et.json")
    made.start()
    torch.ones(2)
    del made
    assert "aten::ones" in names(tmp_path / "et.json")


def test_a_file_lost_to_others_is_only_a_warning_for_the_finalizer(tmp_path):
    made = ExecutionTraceObserver().register_callback(tmp_path / "et.json")
    (tmp_path / "et.json").unlink()
    with pytest.warns(UserWarning, match=r"et\.json' was not finished"):
        made.__del__()


def test_the_environment_switches_it_on(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("ENABLE_PYTORCH_EXECUTION_TRACE", raising=False)
    build = ExecutionTraceObserver.build_execution_trace_obs_from_env
    assert build() is None
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    plain = build()
    assert plain.is_registered
    assert plain.get_output_file_path().endswith(".et.json")
    assert plain.get_resources_dir() is None
    plain.unregister_callback()
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS", "1")
    extra = build()
    assert extra.get_resources_dir() == extra.get_output_file_path().removesuffix(".json") + "_resources"
    assert os.path.isdir(extra.get_resources_dir())
    extra.unregister_callback()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.warns(UserWarning, match="its file cannot be created"):
        assert build() is None


def test_where_resources_are_is_what_torch_says(tmp_path):
    for name in ("et.json", "a.b.json.gz", "plain"):
        path = str(tmp_path / name)
        assert ExecutionTraceObserver.get_resources_dir_for_et_path(path) is None
        ours = ExecutionTraceObserver.get_resources_dir_for_et_path(path, create_dir=True)
        assert ours == TorchObserver.get_resources_dir_for_et_path(path)
    with pytest.warns(UserWarning, match="cannot be created"):
        assert (
            ExecutionTraceObserver.get_resources_dir_for_et_path(tmp_path / "x" / "et.json", create_dir=True)
            is None
        )


def test_sources_of_generated_kernels_are_copied(tmp_path):
    done = run(
        """
        import sys, types
        from pathlib import Path
        import kinetoscope
        made = Path("generated"); made.mkdir()
        for name in ("wrapper.py", "ckey.main.cpp", "ckey.main.so"): (made / name).write_text(name)
        # What Inductor keeps of what it generated; compiling something here would take a minute.
        import torch._inductor.codecache as cache
        wrapper = types.ModuleType("wrapper"); wrapper.__file__ = str(made / "wrapper.py")
        gone = types.ModuleType("gone"); gone.__file__ = str(made / "gone.py")
        cache.PyCodeCache.modules += [wrapper, types.ModuleType("without a file")] + [gone] * (len(sys.argv) > 1)
        kernel = types.ModuleType("ckey.kernel"); kernel.__file__ = str(made / "ckey.main.so")
        sys.modules["ckey.kernel"] = kernel; cache.CppPythonBindingsCodeCache.cache["ckey"] = lambda: None
        observer = kinetoscope.ExecutionTraceObserver().register_callback("et.json")
        observer.set_extra_resource_collection(True)
        observer.start(); observer.unregister_callback()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    copied = {path.name: path.read_text() for path in (tmp_path / "et_resources").iterdir()}
    assert copied == {"wrapper.py": "wrapper.py", "ckey.main.cpp": "ckey.main.cpp"}


@pytest.mark.parametrize("ending", ["sys.exit(3)", "raise KeyError", "pass"])
@pytest.mark.parametrize("name", ["et.json", "et.json.gz"])
def test_a_process_that_ends_with_it_registered_leaves_a_valid_file(tmp_path, ending, name):
    run(
        f"""
        import sys, torch, kinetoscope
        observer = kinetoscope.ExecutionTraceObserver().register_callback({name!r})
        keep = [observer]; keep.append(keep)
        observer.start()
        torch.ones(2)
        {ending}
        """,
        tmp_path,
    )
    assert "aten::ones" in names(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    "child", ["x.cos()", "x.cos(); os._exit(0)", "own()", "observer.unregister_callback()", "del observer"]
)
def test_a_forked_child_neither_writes_to_the_file_nor_finishes_it(tmp_path, child):
    done = run(
        f"""
        import os, sys, torch, kinetoscope
        def own():
            mine = kinetoscope.ExecutionTraceObserver().register_callback("child.json")
            assert mine.is_registered
            mine.start(); x.cos(); mine.unregister_callback()
        observer = kinetoscope.ExecutionTraceObserver().register_callback("et.json")
        x = torch.ones(2)
        observer.start()
        with torch.profiler.record_function("around"):
            x.sin()
            process = os.fork()
            if process == 0:
                assert not observer.is_registered and not observer.is_running()
                {child}
                sys.exit(0)
            assert os.waitpid(process, 0)[1] == 0
            x.tan()
        observer.unregister_callback()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    trace = read_execution_trace(tmp_path / "et.json")
    assert trace.lost == {}
    assert {"aten::sin", "aten::tan", "around"} <= set(trace.nodes["name"])
    assert "aten::cos" not in trace.nodes["name"]
    if child == "own()":
        assert "aten::cos" in names(tmp_path / "child.json")


def test_every_thread_is_recorded(observer, tmp_path):
    import threading

    observer.register_callback(tmp_path / "et.json").start()
    workers = [threading.Thread(target=lambda: torch.ones(3).sin()) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    observer.unregister_callback()
    trace = read_execution_trace(tmp_path / "et.json")
    sines = [row for row, name in enumerate(trace.nodes["name"]) if name == "aten::sin"]
    assert len({int(trace.nodes["torch_tid"][row]) for row in sines}) == 3


def test_torchs_own_session_can_drive_it(observer, tmp_path):
    observer.register_callback(tmp_path / "et.json")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], execution_trace_observer=observer, acc_events=True
    ):
        torch.ones(2)
    assert not observer.is_registered
    assert "aten::ones" in names(tmp_path / "et.json")


def test_the_rank_is_filled_into_the_path(observer, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    observer.register_callback(tmp_path / "et.{rank}.json")
    assert observer.get_output_file_path() == str(tmp_path / "et.3.json")


def test_two_processes_never_share_a_file(observer, tmp_path):
    observer.register_callback(tmp_path / "et.json").start()
    torch.ones(2)
    done = run(
        """
        import kinetoscope
        try: kinetoscope.ExecutionTraceObserver().register_callback("et.json")
        except kinetoscope.ArgumentError as error: print(error)
        """,
        tmp_path,
    )
    assert "another process is writing" in done.stdout, done.stderr
    observer.unregister_callback()
    assert "aten::ones" in names(tmp_path / "et.json")
