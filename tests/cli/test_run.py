"""The options of `kinetoscope run`, which are those that the options of a recording declare."""

import dataclasses

import pytest

from kinetoscope import ArgumentError
from kinetoscope.cli import main
from kinetoscope.collect.request.options import OPTIONS, RecordingOptions

OFFERED = {name: option for name, option in OPTIONS.items() if option.flag}
# The text of an option that is no switch, and what it means.
TEXTS = {"engine": ("kineto", "kineto"), "ring_bytes": ("64M", 64_000_000)}


def recording_of(*words: str) -> RecordingOptions:
    """What is recorded with these words before the program."""
    command = main.get_command(None, "run")
    context = command.make_context("run", [*words, "train.py"])
    return command.callback(**context.params).__self__._options.recording


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_without_options_the_defaults_of_a_launched_program_are_recorded():
    assert recording_of() == RecordingOptions.launched()


@pytest.mark.parametrize("name", OFFERED)
def test_an_option_of_the_command_line_is_that_of_the_recording(name):
    option = OFFERED[name]
    words, value = [option.long_flag], not option.when_launched
    if name in TEXTS:
        words, value = [option.long_flag, TEXTS[name][0]], TEXTS[name][1]
    assert recording_of(*words) == dataclasses.replace(RecordingOptions.launched(), **{name: value})


def test_a_size_that_is_none_is_an_error():
    with pytest.raises(ArgumentError, match="'big' is not a size"):
        recording_of("--ring", "big")


def test_the_help_has_the_sentence_of_each_option():
    command = main.get_command(None, "run")
    helps = {one.name: one.help for one in command.params if getattr(one, "help", None)}
    for name, option in OFFERED.items():
        assert helps[name].startswith(option.help.removesuffix(".")), name
