"""Files that appear only when they are complete."""

import pytest

from kinetoscope.storage.atomic_write import open_atomically


def test_the_name_appears_when_all_is_written(tmp_path):
    path = tmp_path / "x"
    with open_atomically(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"), open_atomically(path) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_a_folder_of_that_name_is_found_before_anything_is_written(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(IsADirectoryError) as error, open_atomically(folder):
        pytest.fail("opened")
    assert error.value.filename == str(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_file_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with open_atomically(tmp_path / "x") as file:
        file.write(b"")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode
