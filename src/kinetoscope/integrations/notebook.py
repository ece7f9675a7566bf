"""`%load_ext kinetoscope`: the magic that profiles a cell or a statement, and rich display of tables.

Imported by IPython only.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.display import display

import kinetoscope
from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.collect import OPTIONS, RecordingOptions
from kinetoscope.display.html import table_html
from kinetoscope.formats.suffixes import suffix_of
from kinetoscope.trace.page import ROWS, trace_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from IPython.core.interactiveshell import InteractiveShell

    from kinetoscope.collect import profile
    from kinetoscope.trace import Trace

_RECORDED_TYPES = ("pyarrow.lib", "Table")
_FILE_OF_A_CELL = "Cell"

# Option -> (keyword of `profile`, its value).
_SWITCHES = {
    option.magic[0]: (name, not option.when_launched) for name, option in OPTIONS.items() if option.magic
}
_VALUES = {"out": "NAME", "save": "PATH", "rows": "NUMBER"}
_SHORT = {"o": "out", "s": "save", "n": "rows", "q": "quiet"} | {
    short: option.magic[0] for option in OPTIONS.values() for short in option.magic[1:]
}
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<equals>=)?")
_VALUE = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")


@dataclass
class _Options:
    """The parsed options of the magic."""

    settings: dict[str, bool] = field(default_factory=lambda: {"with_stack": True, "with_modules": True})
    out: str | None = None
    save: str | None = None
    rows: int = ROWS
    quiet: bool = False
    statement: str = ""


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
        """The HTML form."""
        return trace_page(
            self.trace, rows=self._rows, details=True, title=self._title, file_label=self._file_label
        )


def _described(magic: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the options of a recording in its docstring."""
    lines = []
    for option in OPTIONS.values():
        if option.magic:
            names = ", ".join(f"{'-' if len(name) == 1 else '--'}{name}" for name in reversed(option.magic))
            off = "do not " if option.when_launched else ""
            lines.append(
                f"            {names:<24} {off}{option.help[0].lower()}{option.help[1:].rstrip('.')}"
            )
    magic.__doc__ = (magic.__doc__ or "").replace("<recording>", "\n".join(lines).lstrip())
    return magic


@magics_class
class KinetoscopeMagics(Magics):
    """The magics of this extension."""

    @no_var_expand
    @line_cell_magic
    @output_can_be_silenced
    @_described
    def kinetoscope(self, line: str, cell: str | None = None) -> Any:
        """Profile a cell or a statement, and show where the time went.

        ::

            %%kinetoscope [options]        the cell
            %kinetoscope [options] STATEMENT

        Options::

            -o NAME, --out NAME      store the trace in the variable NAME
            -s PATH, --save PATH     save the trace; the suffix says how (.ktrace, .json, .parquet ...)
            -n N, --rows N           show at most N rows of each table (10)
            -q, --quiet              show nothing; useful with the two above
            <recording>

        The cell runs as without the magic: its names are those of the notebook, its last value is shown, and an exception stops
        it. What was recorded until then is still shown.
        """
        options = parsed(line, in_cell=cell is not None)
        source = cell if cell is not None else options.statement
        run = _compiled(self._own_shell, source)
        try:
            session = kinetoscope.profile.with_options(RecordingOptions.launched(**options.settings))
            session.start()
        except KinetoscopeError as error:
            raise UsageError(str(error)) from None
        __tracebackhide__ = True
        try:
            return run()
        finally:
            self._finish(session, options)

    @property
    def _own_shell(self) -> InteractiveShell:
        """The shell that the magic was registered in."""
        return cast("InteractiveShell", self.shell)

    def _finish(self, session: profile, options: _Options) -> None:
        """Stop the recording; a failure never replaces the cell's own value or exception."""
        try:
            session.stop()
            trace = session.trace
        except Exception as error:  # noqa: BLE001  (whatever it is, the cell itself was run)
            warnings.warn(f"the recording of the cell is lost: {error}", stacklevel=2)
        else:
            self._show(trace, options)

    def _show(self, trace: Trace, options: _Options) -> None:
        """Store, save and show a trace according to the options; an exception of the cell still propagates."""
        if options.out is not None:
            self._own_shell.user_ns[options.out] = trace
        if not options.quiet:
            show: Any = display
            show(Summary(trace, options.rows, "Recorded", self._place))
        if options.save is not None:
            try:
                trace.save(options.save)
            except (KinetoscopeError, OSError) as error:
                warnings.warn(f"the trace could not be saved: {error}", stacklevel=2)

    def _place(self, path: str) -> str:
        """IPython's name of a cell; for other files the file name."""
        found = self._own_shell.compile.format_code_name(path)
        return found[1] if found is not None else re.split(r"[/\\]", path)[-1]


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
    for shown in [shown for shown, function in formatter.type_printers.items() if function is table_html]:
        formatter.pop(shown)


def parsed(line: str, *, in_cell: bool) -> _Options:
    """Parse the options of the magic and, for the line form, the statement after them.

    Raises:
        UsageError: An option is unknown or has no value, or a statement is missing.
    """
    options, rest = _Options(), line.strip()
    while (found := _OPTION.match(rest)) is not None:
        name, rest = found["name"], rest[found.end() :]
        name = _SHORT.get(name, name)
        if name in _VALUES:
            value = _VALUE.match(rest)
            if value is None:
                raise UsageError(f"--{name} of %kinetoscope needs a value: --{name} {_VALUES[name]}")
            rest = rest[value.end() :]
            _set(options, name, value[1].strip("\"'") if value[1][0] in "\"'" else value[1])
        elif found["equals"] or (name != "quiet" and name not in _SWITCHES):
            raise UsageError(_unknown(found["name"], takes_value=found["equals"] is not None))
        elif name == "quiet":
            options.quiet = True
        else:
            options.settings.update([_SWITCHES[name]])
        rest = rest.lstrip()
    options.statement = rest.removeprefix("-- ").strip()
    if in_cell and options.statement:
        raise UsageError(
            f"{options.statement!r} is not an option of %%kinetoscope; put statements on the lines below it"
        )
    if not in_cell and not options.statement:
        raise UsageError(
            "%kinetoscope needs a statement after its options; %%kinetoscope profiles a whole cell"
        )
    return options


def _set(options: _Options, name: str, value: str) -> None:
    """Set an option that has a value."""
    if name == "rows":
        if not value.isdecimal() or int(value) == 0:
            raise UsageError(f"--rows {value} of %kinetoscope is not valid; use a whole number above 0")
        options.rows = int(value)
    elif name == "save":
        try:
            suffix_of(value)
        except ArgumentError as error:
            raise UsageError(str(error)) from None
        if not Path(value).parent.is_dir():
            raise UsageError(
                f"--save {value} of %kinetoscope is not valid: there is no folder {Path(value).parent}"
            )
        options.save = value
    elif not value.isidentifier():
        raise UsageError(f"--out {value} of %kinetoscope is not valid; use the name of a variable")
    else:
        options.out = value


def _unknown(name: str, *, takes_value: bool) -> str:
    """The error message of an unknown option."""
    known = [*_VALUES, *_SWITCHES, "quiet"]
    if takes_value and name in known:
        return f"--{name} of %kinetoscope takes no value"
    near = difflib.get_close_matches(name, known, n=1)
    return f"%kinetoscope has no option {name!r}; " + (
        f"did you mean --{near[0]}?" if near else f"it knows --{', --'.join(known)}"
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
    """The number of the running cell: that of the innermost caller that is a cell."""
    frame = inspect.currentframe()
    while frame is not None:
        found = shell.compile.format_code_name(frame.f_code.co_filename)
        if found is not None and (number := re.search(r"\d+", found[1])) is not None:
            return int(number[0])
        frame = frame.f_back
    return shell.execution_count


def _code(shell: InteractiveShell, tree: Any, file: str, mode: str) -> CodeType:
    """Compile a tree; top-level `await` is not possible inside a magic."""
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        code: CodeType = shell.compile(tree, file, mode)
    if code.co_flags & inspect.CO_COROUTINE:
        raise UsageError(
            "a cell with `await` at its top cannot be profiled by %%kinetoscope: write `with kinetoscope.profile() as prof:`"
            " around the code to profile"
        )
    return code


def _html_formatter(shell: InteractiveShell) -> Any:
    """IPython's HTML formatter."""
    return cast("Any", shell.display_formatter).formatters["text/html"]
