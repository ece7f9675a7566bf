"""`%load_ext kinetoscope`: the magic that profiles a cell or a statement, and rich display of tables.

Imported by IPython only.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from argparse import REMAINDER, SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, cast

from IPython.core import magic_arguments
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.display import display

import kinetoscope
from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.analyses.trace_blocks import ROWS
from kinetoscope.collect import OPTIONS, RecordingOptions, profile
from kinetoscope.display.html import table_html
from kinetoscope.formats.suffixes import suffix_of
from kinetoscope.trace import Trace
from kinetoscope.trace.page import trace_page

_RECORDED_TYPES = ("pyarrow.lib", "Table")

# IPython declares no types for these.
_argument: Any = magic_arguments.argument
_magic_arguments: Any = magic_arguments.magic_arguments

# A word of a line, whose quoted parts may hold spaces.
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")


class Summary:
    """What a notebook shows of a recorded cell; its `trace` is the trace."""

    def __init__(self, trace: Trace, rows: int, title: str, file_label: Callable[[str], str]) -> None:
        """Hold what is shown."""
        self.trace = trace
        self._rows, self._title, self._file_label = rows, title, file_label

    def __repr__(self) -> str:
        """The text form, for frontends without HTML."""
        events = self.trace.key_averages(include_python_functions=False)
        return f"{self._title}: {self.trace!r}\n{events.table(sort_by='self_cpu_time_total', row_limit=self._rows)}"

    def _repr_html_(self) -> str:
        return trace_page(
            self.trace, rows=self._rows, details=True, title=self._title, file_label=self._file_label
        )


def _unquoted(text: str) -> str:
    quote = text[:1]
    return text[1:-1] if quote in ("'", '"') and len(text) > 1 and text.endswith(quote) else text


def _rows(text: str) -> int:
    text = _unquoted(text)
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def _variable(text: str) -> str:
    text = _unquoted(text)
    if not text.isidentifier():
        raise ArgumentTypeError(f"{text} is not the name of a variable")
    return text


def _file_to_save(text: str) -> str:
    text = _unquoted(text)
    try:
        suffix_of(text)
    except ArgumentError as error:
        raise ArgumentTypeError(str(error)) from None
    if not Path(text).parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {Path(text).parent}")
    return text


def _recording_arguments(magic: Callable[..., Any]) -> Callable[..., Any]:
    for name, option in reversed(list(OPTIONS.items())):
        if not option.magic_flags:
            continue
        written = [f"{'-' if len(flag) == 1 else '--'}{flag}" for flag in reversed(option.magic_flags)]
        off = "do not " if option.when_launched else ""
        magic = _argument(
            *written,
            dest=name,
            action="store_const",
            const=not option.when_launched,
            default=SUPPRESS,
            help=f"{off}{option.help[0].lower()}{option.help[1:].rstrip('.')}".replace("%", "%%"),
        )(magic)
    return magic


@magics_class
class KinetoscopeMagics(Magics):
    """The magics of this extension."""

    shell: Any

    @_magic_arguments()
    @_argument("-o", "--out", metavar="NAME", type=_variable, help="store the trace in this variable")
    @_argument(
        "-s",
        "--save",
        metavar="PATH",
        type=_file_to_save,
        help="save the trace; the suffix says how (.ktrace, .json, .parquet ...)",
    )
    @_argument(
        "-n",
        "--rows",
        metavar="N",
        type=_rows,
        default=ROWS,
        help=f"show at most so many rows of each table ({ROWS})",
    )
    @_argument("-q", "--quiet", action="store_true", help="show nothing; useful with --out and --save")
    @_recording_arguments
    @_argument("statement", nargs=REMAINDER, help="what to profile; with %%%%kinetoscope, the cell")
    @no_var_expand
    @line_cell_magic
    @output_can_be_silenced
    def kinetoscope(self, line: str, cell: str | None = None) -> Any:
        """Profile a cell or a statement, and show where the time went.

        The cell runs as without the magic: its names are those of the notebook, its last value is shown, and an exception stops
        it. What was recorded until then is still shown.
        """
        options = parsed(line, in_cell=cell is not None)
        source = cell if cell is not None else options.statement
        run = _compiled(self.shell, source)
        try:
            session = kinetoscope.profile.with_options(RecordingOptions.launched(**settings_of(options)))
            session.start()
        except KinetoscopeError as error:
            raise UsageError(str(error)) from None
        __tracebackhide__ = True
        try:
            return run()
        finally:
            self._finish(session, options)

    def _finish(self, session: profile, options: Namespace) -> None:
        """Stop the recording; a failure never replaces the cell's own value or exception."""
        try:
            session.stop()
            trace = session.trace
        except Exception as error:  # noqa: BLE001  (whatever it is, the cell itself was run)
            warnings.warn(f"the recording of the cell is lost: {error}", stacklevel=2)
        else:
            self._show(trace, options)

    def _show(self, trace: Trace, options: Namespace) -> None:
        if options.out is not None:
            self.shell.user_ns[options.out] = trace
        if not options.quiet:
            show: Any = display
            show(Summary(trace, options.rows, "Recorded", self._place))
        if options.save is not None:
            try:
                trace.save(options.save)
            except (KinetoscopeError, OSError) as error:
                warnings.warn(f"the trace could not be saved: {error}", stacklevel=2)

    def _place(self, path: str) -> str:
        cell = self.shell.compile.format_code_name(path)
        return cell[1] if cell is not None else re.split(r"[/\\]", path)[-1]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magic, and the HTML display of tables."""
    shell.register_magics(KinetoscopeMagics)
    _html_formatter(shell).for_type_by_name(*_RECORDED_TYPES, table_html)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Undo `load_ipython_extension`."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("kinetoscope", None)
    # By name until a table was shown, by type from then on.
    formatter = _html_formatter(shell)
    formatter.deferred_printers.pop(_RECORDED_TYPES, None)
    for cls in [cls for cls, function in formatter.type_printers.items() if function is table_html]:
        formatter.pop(cls)


def parsed(line: str, *, in_cell: bool) -> Namespace:
    """Parse the options of the magic and, for the line form, the statement after them, which stays as it is written.

    Raises:
        UsageError: An option is unknown or has no value or a wrong one, or a statement is missing.
    """
    words = list(_WORD.finditer(line))
    parser: ArgumentParser = cast("Any", KinetoscopeMagics.kinetoscope).parser
    options, unknown = parser.parse_known_args([word[0] for word in words])
    if unknown:
        raise UsageError(_unknown(unknown[0]))
    first = len(words) - len(options.statement)
    options.statement = line[words[first].start() :].removeprefix("-- ").strip() if options.statement else ""
    if in_cell and options.statement:
        raise UsageError(
            f"{options.statement!r} is not an option of %%kinetoscope; put statements on the lines below it"
        )
    if not in_cell and not options.statement:
        raise UsageError(
            "%kinetoscope needs a statement after its options; %%kinetoscope profiles a whole cell"
        )
    return options


def settings_of(options: Namespace) -> dict[str, bool]:
    """The recording options among the parsed ones."""
    return {name: value for name, value in vars(options).items() if name in OPTIONS}


def _unknown(written: str) -> str:
    flags = [flag for option in OPTIONS.values() for flag in option.magic_flags if len(flag) > 1]
    options = ["out", "save", "rows", "quiet", *flags]
    name = written.lstrip("-").partition("=")[0]
    near = difflib.get_close_matches(name, options, n=1)
    return f"%kinetoscope has no option {name!r}; " + (
        f"did you mean --{near[0]}?" if near else f"it knows --{', --'.join(options)}"
    )


def _compiled(shell: InteractiveShell, source: str) -> Callable[[], Any]:
    """Compile a cell with its line numbers; return a function that runs it and returns its last value."""
    transformed: str = shell.transform_cell(source)  # type: ignore[no-untyped-call]
    file = shell.compile.cache(transformed, _cell_number(shell), raw_code=source)
    tree: Any = shell.transform_ast(shell.compile.ast_parse(transformed, filename=file))  # type: ignore[no-untyped-call]
    last: CodeType | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = _code(shell, ast.Expression(tree.body.pop().value), file, "eval")
    body = _code(shell, tree, file, "exec")

    def run() -> Any:
        __tracebackhide__ = True
        names = shell.user_ns
        exec(body, shell.user_global_ns, names)  # noqa: S102  (the user's own cell)
        return eval(last, shell.user_global_ns, names) if last is not None else None  # noqa: S307

    return run


def _cell_number(shell: InteractiveShell) -> int:
    """The number of the running cell, from the innermost caller that is one."""
    frame = inspect.currentframe()
    while frame is not None:
        cell = shell.compile.format_code_name(frame.f_code.co_filename)
        if cell is not None and (number := re.search(r"\d+", cell[1])) is not None:
            return int(number[0])
        frame = frame.f_back
    return shell.execution_count


def _code(shell: InteractiveShell, tree: Any, file: str, mode: str) -> CodeType:
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        code: CodeType = shell.compile(tree, file, mode)
    if code.co_flags & inspect.CO_COROUTINE:
        raise UsageError(
            "a cell with `await` at its top cannot be profiled by %%kinetoscope: write `with kinetoscope.profile() as prof:`"
            " around the code to profile"
        )
    return code


def _html_formatter(shell: InteractiveShell) -> Any:
    return cast("Any", shell.display_formatter).formatters["text/html"]
