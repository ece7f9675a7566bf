import click

from kinetoscope import KinetoscopeError
from kinetoscope.cli import main
from tests.cli.test_convert import run_trace
from tests.support.messages import Text, check_messages


def refused_options() -> Text:
    """What each command says of `nonsense` as the value of each of its options, and of an option that it does not have; it runs nothing."""
    root = click.Context(main, info_name="kinetoscope")
    saying: dict[str, list[str]] = {}
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        flags = [
            next((flag for flag in option.opts if flag.startswith("--")), option.opts[0])
            for option in command.params
            if isinstance(option, click.Option) and not option.is_flag and not option.count
        ]
        for flag in [*flags, "--no-such-option"]:
            try:
                command.make_context(name, [flag, "nonsense"], parent=root)
                said = "accepted"
            except (click.ClickException, KinetoscopeError) as error:
                said = getattr(error, "format_message", error.__str__)().replace(flag, "OPTION")
            saying.setdefault(said, []).append(f"{name} {flag}")
    return Text("\n".join(f"{said}\n    {', '.join(options)}" for said, options in saying.items()))


def test_what_is_refused_or_warned_of_is_said_in_the_stored_words(call, trace_path, tmp_path):
    def said(*words: object) -> Text:
        """The exit code of a call of the command, and what it writes to standard error."""
        done = call(*words)
        return Text(f"{done.exit_code}: {done.stderr.replace(str(tmp_path), 'FOLDER')}")

    def wrong(*words: object, **options: list[str]) -> Text:
        """The same of a call with each of some values of an option, a line for each."""
        ((name, values),) = options.items()
        return Text("\n".join(f"{value!r}: {said(*words, f'--{name}', value).strip()}" for value in values))

    ranks = tmp_path / "ranks.ktrace"
    run_trace().save(ranks)
    check_messages(
        __file__,
        refused_options=refused_options,
        kinetoscope=said,
        wrong=wrong,
        trace=trace_path,
        ranks=ranks,
    )
