import gzip
import json
import warnings
from contextlib import nullcontext
from datetime import timedelta

import pytest

import kinetoscope
from kinetoscope import FolderNotEmptyError
from kinetoscope.integrations.composer import Timestamp, TraceFiles
from tests.integrations.composer.profilers import a_trace

PLAIN = {"folder": "{run_name}", "filename": "rank{rank}.{batch}.json", "remote_file_name": None}


def as_rank_5_of_8(monkeypatch):
    places = {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "NODE_RANK": 1}
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------------------------- names


def test_the_names_of_the_contract_are_the_defaults(tmp_path, small_trace):
    files = TraceFiles()
    files.start("awesome")
    path = files.save(small_trace, Timestamp(batch=42))
    assert path.resolve() == tmp_path / "awesome/torch_traces/rank0.42.pt.trace.json"
    assert "traceEvents" in json.loads(path.read_text("utf-8"))


OF_PLACE = {
    "run_name": "awesome", "rank": "5", "local_rank": "1", "world_size": "8", "local_world_size": "4", "node_rank": "1",
}  # fmt: skip
OF_TIME = {
    "epoch": 1, "batch": 42, "batch_in_epoch": 2, "sample": 336, "sample_in_epoch": 16, "token": 672, "token_in_epoch": 32,
    "total_wct": timedelta(seconds=90.5), "epoch_wct": timedelta(seconds=4.25), "batch_wct": timedelta(seconds=2),
}  # fmt: skip


def test_every_variable_is_filled_in(monkeypatch, small_trace, tmp_path):
    as_rank_5_of_8(monkeypatch)
    times = {
        name: str(value.total_seconds() if isinstance(value, timedelta) else value)
        for name, value in OF_TIME.items()
    }
    for variable, value in (OF_PLACE | times).items():
        files = TraceFiles("traces", f"{{{variable}}}.json", None, overwrite=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            files.start("awesome")
        one_for_all = (
            f"4 processes of this machine write traces of the same name, traces/{{{variable}}}.json, so they overwrite each other: "
            "put {rank} in the filename."
        )
        is_of_a_rank = variable in {"rank", "local_rank"}
        assert [str(warning.message) for warning in told] == [one_for_all] * (not is_of_a_rank)
        assert files.save(small_trace, Timestamp(**OF_TIME)).name == f"{value}.json"
    for variable, value in OF_PLACE.items():
        folder = TraceFiles(f"a/{{{variable}}}/b", "{rank}.json", None).start("awesome")
        assert folder.resolve() == tmp_path / "a" / value / "b"


def test_a_node_is_also_known_by_the_name_torchrun_gives_it(monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "3")
    assert TraceFiles("node{node_rank}", "a.json", None).start().name == "node3"


def test_formats_of_variables_can_be_chosen_and_braces_kept(tmp_path, small_trace):
    files = TraceFiles("t", "{{x}}.{batch:06d}.{total_wct:.1f}.json", None)
    files.start()
    assert files.save(small_trace, Timestamp(batch=7)).name == "{x}.000007.0.0.json"


def test_other_formats_are_chosen_by_the_suffix(small_trace):
    files = TraceFiles("t", "{batch}.ktrace", None)
    files.start()
    with kinetoscope.open(files.save(small_trace, Timestamp())) as trace:
        assert trace.table("spans").num_rows == 1


# --------------------------------------------------------------------------------------------------------------- gzip


@pytest.mark.parametrize("name", ["{batch}.json", "{batch}.json.gz"])
def test_gz_is_appended_once(name, small_trace):
    files = TraceFiles("t", name, None, use_gzip=True)
    files.start()
    path = files.save(small_trace, Timestamp(batch=3))
    assert path.name == "3.json.gz"
    assert "traceEvents" in json.loads(gzip.decompress(path.read_bytes()))


# ---------------------------------------------------------------------------------------------------------- overwrite


@pytest.mark.parametrize("there", ["old.json", "deep/er/old.json"])
def test_a_folder_with_files_is_refused(there, tmp_path):
    old = tmp_path / "run" / there
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    with pytest.raises(
        FileExistsError,
        match=rf"the folder for traces, run, is not empty: it contains {there}.*overwrite=True",
    ):
        TraceFiles(**PLAIN).start("run")
    assert issubclass(FolderNotEmptyError, FileExistsError)
    assert TraceFiles(**PLAIN, overwrite=True).start("run").name == "run"


@pytest.mark.parametrize("there", [".hidden", ".git/config", "empty/"])
def test_hidden_files_and_empty_folders_do_not_count(there, tmp_path):
    old = tmp_path / "run" / there
    (old if there.endswith("/") else old.parent).mkdir(parents=True)
    if not there.endswith("/"):
        old.write_text("x")
    TraceFiles(**PLAIN).start("run")


# ---------------------------------------------------------------------------------------------------------- retention


@pytest.mark.parametrize("kept", [-1, 0, 1, 2, 9])
def test_the_oldest_traces_go(kept, tmp_path, small_trace):
    files = TraceFiles(**PLAIN, num_traces_to_keep=kept)
    warning = pytest.warns(UserWarning, match="num_traces_to_keep=0 deletes every trace")
    with warning if kept == 0 else nullcontext():
        files.start("run")
    moments = [Timestamp(batch=batch) for batch in range(4)]
    for moment in moments:
        files.save(small_trace, moment)
        assert kept < 0 or len(files.saved_traces) <= kept
    staying = moments if kept in (-1, 9) else moments[len(moments) - kept :]
    assert [moment for moment, _ in files.saved_traces] == staying
    assert files_below(tmp_path) == [f"run/rank0.{moment.batch}.json" for moment in staying]
    assert all(path.exists() for _, paths in files.saved_traces for path in paths)


def test_a_name_that_is_always_the_same_is_the_newest_trace(tmp_path, small_trace):
    files = TraceFiles("run", "latest.json", None, num_traces_to_keep=1)
    files.start()
    for batch in range(3):
        files.save(small_trace, Timestamp(batch=batch))
    assert files_below(tmp_path) == ["run/latest.json"]
    assert [moment.batch for moment, _ in files.saved_traces] == [2]


def test_a_file_that_somebody_else_removed_is_no_trouble(tmp_path, small_trace):
    files = TraceFiles(**PLAIN, num_traces_to_keep=1)
    files.start("run")
    files.save(small_trace, Timestamp(batch=0)).unlink()
    files.save(small_trace, Timestamp(batch=1))
    assert files_below(tmp_path) == ["run/rank0.1.json"]


def test_a_file_that_cannot_be_deleted_is_a_warning(small_trace):
    files = TraceFiles(**PLAIN, num_traces_to_keep=1)
    files.start("run")
    path = files.save(small_trace, Timestamp(batch=0))
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match=r"the old trace run/rank0.0.json could not be deleted: "):
        files.save(small_trace, Timestamp(batch=1))
    assert [moment.batch for moment, _ in files.saved_traces] == [1]


def test_each_rank_knows_the_paths_of_all(monkeypatch, small_trace):
    as_rank_5_of_8(monkeypatch)
    files = TraceFiles("{run_name}/node{node_rank}", "rank{rank}.gpu{local_rank}.{batch}.json", None)
    files.start("run")
    files.save(small_trace, Timestamp(batch=2))
    ((_, paths),) = files.saved_traces
    assert [str(path) for path in paths] == [
        f"run/node{rank // 4}/rank{rank}.gpu{rank % 4}.2.json" for rank in range(8)
    ]
    assert [path.exists() for path in paths] == [rank == 5 for rank in range(8)]


# ------------------------------------------------------------------------------------------------------------- memory


def test_a_memory_timeline_is_written_and_goes_with_its_trace(tmp_path):
    files = TraceFiles(**PLAIN, memory_filename="memory{batch}.html", num_traces_to_keep=1)
    files.start("run")
    for batch in range(2):
        files.save(a_trace(None), Timestamp(batch=batch))
    assert files_below(tmp_path) == ["run/memory1.html", "run/rank0.1.json"]
    assert "<html" in (tmp_path / "run/memory1.html").read_text("utf-8")


def test_a_trace_without_memory_is_saved_all_the_same(tmp_path, small_trace):
    files = TraceFiles(**PLAIN, memory_filename="memory{batch}.html")
    files.start("run")
    with pytest.warns(UserWarning, match=r"no memory timeline run/memory0.html: "):
        files.save(small_trace, Timestamp())
    assert files_below(tmp_path) == ["run/rank0.0.json"]
