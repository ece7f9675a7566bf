"""The loss of a run as it falls."""

import contextlib
import io

from rich.console import Console

from kinetoscope.cli.demo import LossDisplay


def train(display: LossDisplay, steps: int) -> None:
    """Prints what the examples print."""
    with display, contextlib.redirect_stdout(display):
        print("preparing")
        for step in range(steps):
            print(f"step {step + 1:4d}/{steps}  loss {2 / (step + 1):.4f}", flush=True)


def test_without_a_terminal_the_last_step_is_printed():
    stream = io.StringIO()
    train(LossDisplay(Console(file=stream, width=80), 50), 50)
    first, last = stream.getvalue().splitlines()
    assert first == "preparing"
    assert last.startswith("step 50/50  loss 0.040")


def test_a_terminal_keeps_one_line_that_ends_with_the_last_step():
    stream = io.StringIO()
    train(LossDisplay(Console(file=stream, width=80, force_terminal=True, color_system=None), 20), 20)
    last = [line for line in stream.getvalue().splitlines() if "step" in line][-1]
    assert "step 20/20" in last
    assert "loss 0.100" in last
    assert last.rstrip("\x1b[?25h ").endswith("█▄▃▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁"[-5:])


def test_what_is_written_in_pieces_is_read_as_lines():
    display = LossDisplay(Console(file=io.StringIO(), width=40), 2)
    with display:
        for piece in ("step 1/2  lo", "ss 1.5000", "\nstep 2", "/2  loss 0.5000\n"):
            assert display.write(piece) == len(piece)
    assert display.losses == [1.5, 0.5]


def test_a_narrow_terminal_is_not_overrun():
    stream = io.StringIO()
    train(LossDisplay(Console(file=stream, width=40, force_terminal=True, color_system=None), 30), 30)
    steps = [line for line in stream.getvalue().splitlines() if "step 30/30" in line]
    assert steps


def test_nothing_is_shown_of_a_run_that_is_not_to_be_seen():
    stream = io.StringIO()
    display = LossDisplay(Console(file=stream, width=80, force_terminal=True, quiet=True), 3)
    with display:
        display.write("step 1/3  loss 1.5000\n")
    assert display.losses == [1.5]
    assert stream.getvalue() == ""
