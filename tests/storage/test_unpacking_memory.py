"""The available memory of a process."""

from kinetoscope.storage.unpacking import LEAST_BYTES, SHARE, available_bytes, default_memory_bytes

INFO = "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:     900 kB\nHugePages_Total: 0\n"


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_kernel_says_what_is_available(tmp_path):
    info = write(tmp_path, {"meminfo": INFO}) / "meminfo"
    assert available_bytes(info, tmp_path / "none") == 900 * 1024


def test_a_container_may_have_less(tmp_path):
    info = write(tmp_path, {"meminfo": INFO}) / "meminfo"
    stat = "anon 5\ninactive_file 100\nactive_file 50\n"
    second = write(tmp_path / "v2", {"memory.max": "5000\n", "memory.current": "400\n", "memory.stat": stat})
    assert available_bytes(info, second) == 5000 - (400 - 150)
    first = write(
        tmp_path / "v1",
        {
            "memory/memory.limit_in_bytes": "6000",
            "memory/memory.usage_in_bytes": "7000",
            "memory/memory.stat": stat,
        },
    )
    assert available_bytes(info, first) == 0
    (tmp_path / "v2" / "memory.max").write_text("max\n")
    assert available_bytes(info, second) == 900 * 1024


def test_without_the_kernel_nothing_is_known(tmp_path):
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None


def test_half_is_taken_and_never_too_little():
    assert default_memory_bytes() in (0, LEAST_BYTES) or default_memory_bytes() > LEAST_BYTES
    assert SHARE == 2
