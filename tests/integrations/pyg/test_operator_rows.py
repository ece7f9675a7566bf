from collections import defaultdict
from types import SimpleNamespace

from kinetoscope.integrations.pyg import format_prof_time, save_profile_data

COLUMNS = ["NAME", "SELF CPU %", "SELF CPU", "CPU TOTAL %", "CPU TOTAL", "CPU TIME AVG", "# OF CALLS"]
OF_DEVICE = ["SELF CUDA %", "SELF CUDA", "CUDA TOTAL", "CUDA TIME AVG"]


def events(count: int = 6, **extra) -> list[SimpleNamespace]:
    """Makes operators, each with whole seconds: the first takes `count` of them itself, the last one."""
    return [
        SimpleNamespace(
            key=f"aten::op{place}",
            count=2,
            self_cpu_time_total=(count - place) * 1e6,
            cpu_time_total=(count - place) * 3e6,
            **{name: value * (count - place) for name, value in extra.items()},
        )
        for place in range(count)
    ]


def test_the_first_five_become_rows():
    columns: dict[str, list] = defaultdict(list)
    save_profile_data(columns, events(), use_cuda=False)
    assert list(columns) == COLUMNS
    assert columns["NAME"] == [f"aten::op{place}" for place in range(5)]
    assert columns["SELF CPU"] == [6.0, 5.0, 4.0, 3.0, 2.0]
    # The shares are of all six, 21 seconds themselves and 63 together.
    assert columns["SELF CPU %"] == [28.571, 23.81, 19.048, 14.286, 9.524]
    assert columns["CPU TOTAL %"] == columns["SELF CPU %"]
    assert columns["CPU TOTAL"] == [18.0, 15.0, 12.0, 9.0, 6.0]
    assert columns["CPU TIME AVG"] == [9.0, 7.5, 6.0, 4.5, 3.0]
    assert columns["# OF CALLS"] == [2] * 5


def test_with_cuda_the_devices_columns_hold_the_devices_times():
    columns: dict[str, list] = {}
    times = {"self_device_time_total": 2e6, "device_time_total": 5e6}
    save_profile_data(columns, events(2, **times), use_cuda=True)
    assert list(columns) == [*COLUMNS[:-1], *OF_DEVICE, COLUMNS[-1]]
    assert columns["SELF CUDA"] == [4.0, 2.0]
    assert columns["SELF CUDA %"] == [66.667, 33.333]
    assert columns["CUDA TOTAL"] == [10.0, 5.0]
    assert columns["CUDA TIME AVG"] == [5.0, 2.5]


def test_rows_are_appended_to_what_is_there():
    columns = {name: ["earlier"] for name in COLUMNS}
    save_profile_data(columns, iter(events(1)), use_cuda=False)
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(COLUMNS, 2)


def test_no_time_at_all_is_no_share_of_anything():
    columns: dict[str, list] = {}
    still = SimpleNamespace(
        key="still",
        count=0,
        self_cpu_time_total=0,
        cpu_time_total=0,
        self_device_time_total=0,
        device_time_total=0,
    )
    save_profile_data(columns, [still], use_cuda=True)
    assert {name: column[0] for name, column in columns.items() if name != "NAME"} == dict.fromkeys(
        [*COLUMNS[1:], *OF_DEVICE], 0
    )


def test_microseconds_are_seconds_of_three_digits():
    assert [format_prof_time(time) for time in (1_234_567, 0, 499)] == [1.235, 0.0, 0.0]
