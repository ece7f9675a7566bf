"""Reading the recordings of a session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, NotRecordedError
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.session.cycle import CycleChoice, Cycles, FinishedCycles
from kinetoscope.collect.session.memory_profile import MemoryProfile

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import Engine, RecordingOptions
    from kinetoscope.collect.session.stats import Stopwatch
    from kinetoscope.trace import Trace


class ReadsCycles:
    """The methods of a session that read its cycles, by default the last finished one; all can be called repeatedly."""

    # Not an abstract base class: isinstance() with one also asks its subclasses, and the classes of `install` accept
    # torch's sessions as instances.

    _options: RecordingOptions
    _engine: Engine | None
    _cycles: FinishedCycles
    _stopwatch: Stopwatch

    def _why_no_trace(self) -> str:
        """Say why there is no trace yet, for an error message."""
        return "nothing was recorded yet"

    @property
    def trace(self) -> Trace:
        """The trace of the last finished cycle; built on first use, then the same object until a new cycle ends.

        Raises:
            StateError: Nothing was recorded yet; the message says which call is missing.
        """
        return self._trace_of(None)

    @property
    def cycles(self) -> Cycles:
        """The traces of the finished cycles, a sequence: all with `acc_events=True`, else the last one.

        `prof.cycles.numbers` are their numbers, counted from 0 over all cycles of the session. `prof.cycles.together()` is
        one trace of all of them, which `save(path, cycle="all")` and `export_chrome_trace(path, cycle="all")` write.
        """
        return self._cycles.shown

    def export_chrome_trace(
        self,
        path: str | os.PathLike[str],
        use_python_export: bool = False,
        cuda_graph_annotations: Mapping[int, Any] | None = None,
        graph_lanes: str = "none",
        default_stream: int = 7,
        *,
        cycle: CycleChoice = None,
        identity: bool = False,
    ) -> None:
        """Write a trace in Chrome's JSON format, as Perfetto and chrome://tracing read it.

        Args:
            path: The file; a name ending in `.gz` is compressed. It appears under its name only when it is whole.
            use_python_export: Has no effect; torch chooses one of its two writers by it, and there is one here.
            cuda_graph_annotations: Accepted as in torch 2.15, but not written, with a warning.
            graph_lanes: Accepted as in torch 2.15, "none" or "all"; without effect: kernels stay on the stream they ran on.
            default_stream: Accepted with `graph_lanes`; without effect.
            cycle: None for the last finished cycle, the number of a stored one, or `"all"` for all stored ones
                (`acc_events=True`), on one time axis.
            identity: Also write the command line, the folders of the program, and the name and boot id of the machine, as
                `save` does.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: There is no such cycle, the path is not valid, `graph_lanes` is neither "none" nor "all", or it is
                "all" without annotations.
            OSError: The file cannot be written.
        """
        import_aside()
        checked = _checked_path(path)
        if graph_lanes not in ("none", "all") or (graph_lanes == "all" and not cuda_graph_annotations):
            raise ArgumentError(
                f"graph_lanes={graph_lanes!r} is not valid: choose 'none', or 'all' together with cuda_graph_annotations."
            )
        if cuda_graph_annotations:
            warn_user(
                "without effect: cuda_graph_annotations. Annotations of CUDA graphs are not written; torch.profiler's own "
                "export_chrome_trace writes them."
            )
        trace = self._trace_of(cycle)
        from kinetoscope.formats.chrome.write import write_chrome_trace

        write_chrome_trace(trace, checked, identity=identity)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Write how much memory each category held over the last finished trace.

        Args:
            path: The file. `.html`: the memory page of the viewer. `.json`, `.json.gz`: times in microseconds and the bytes of
                each category at each of them. `raw.json.gz`: every event as (time in ns, action, bytes, category). The
                JSON forms come from torch's own objects where its collector recorded memory, shapes and stacks.
            device: The device, such as `cpu` or `cuda:0`; None: the one that held the most bytes at its peak.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The session was made without `profile_memory=True`, the suffix is unknown, or no memory of the
                device was recorded.
        """
        import_aside("kinetoscope.viewer.server.report")
        checked = _checked_path(path)
        self._need_memory("export_memory_timeline()")
        trace = self.trace
        if checked.lower().endswith(".html"):
            from kinetoscope.viewer.server.report import write_memory_page

            write_memory_page(trace, checked, device)
            return
        from kinetoscope.formats.memory_timeline import write_memory_timeline

        write_memory_timeline(trace, checked, device, torchs=self._torch_timeline())

    def _memory_profile(self) -> Any:
        """Return the memory of the last finished trace as objects, as `torch.profiler` does: see its `timeline`.

        If torch's collector recorded memory, shapes and stacks, it is torch's own object.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The session was made without `profile_memory=True`.
        """
        self._need_memory("_memory_profile()")
        theirs = self._torch_memory_profile()
        return MemoryProfile(self.trace) if theirs is None else theirs

    def _torch_memory_profile(self) -> Any | None:
        """torch's own `MemoryProfile`; None unless its collector recorded memory, shapes and stacks."""
        import_aside()
        theirs = getattr(self._engine, "torch_profiler", None)
        results = None if theirs is None else theirs.kineto_results
        options = self._options
        if results is None or not (options.profile_memory and options.record_shapes and options.with_stack):
            return None
        from torch.profiler._memory_profiler import MemoryProfile as TorchsMemoryProfile

        return TorchsMemoryProfile(results)

    def _torch_timeline(self) -> Any | None:
        """torch's `MemoryProfileTimeline`, which has tensor versions; None if torch's collector did not record this cycle."""
        import_aside()
        try:
            profile = self._torch_memory_profile()
            if profile is None:
                return None
            from torch.profiler._memory_profiler import MemoryProfileTimeline

            return MemoryProfileTimeline(profile)
        # torch's analysis has assertions that do not hold for every program; our own timeline has most of its results.
        except Exception as error:  # noqa: BLE001  (whatever fails in there, the rest is still to be written)
            warn_user(
                f"the memory timeline has no tensor versions: torch's memory analysis failed with "
                f"{type(error).__name__}: {error}. The native engine records them itself."
            )
            return None

    def save(self, path: str | os.PathLike[str], *, cycle: CycleChoice = None) -> None:
        """Save a trace in the format that the suffix names.

        Args:
            path: The file, such as `run.ktrace`, `run.parquet` or `run.json.gz`.
            cycle: As for `export_chrome_trace`.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The suffix is unknown, or there is no such cycle.
            OSError: The file cannot be written.
        """
        checked = _checked_path(path)
        self._trace_of(cycle).save(checked)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write the operators' Python stacks with a metric, in the collapsed form that flame graph tools read.

        Each line is a stack, root first, its frames joined by `;`, then a space and the metric in whole microseconds.

        Args:
            path: The file.
            metric: `self_cpu_time_total` or `self_cuda_time_total`, for example.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: There is no such metric; the message lists those that there are.
            OSError: The file cannot be written.
        """
        checked = _checked_path(path)
        self.events().export_stacks(checked, metric)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool | None = None,
    ) -> Any:
        """Aggregate the last finished cycle by operator; with `acc_events=True`, all cycles.

        Args:
            group_by_input_shape: Group by input shapes.
            group_by_stack_n: Group by this many innermost stack frames.
            group_by_overload_name: Group by overload name.
            include_python_functions: Whether calls of Python functions and modules, which are events with
                `with_stack=True`, are among them; None does as the installed torch: up to 2.13 they are, from 2.14 on
                they are not.

        Returns:
            An `EventList` with one row for each group.

        Raises:
            StateError: Nothing was recorded yet.
        """
        import_aside()
        trace = self._trace_of("all" if self._options.acc_events else None)
        from kinetoscope.torch_events.event_list import key_averages

        return key_averages(
            trace,
            group_by_input_shape=group_by_input_shape,
            group_by_stack_n=group_by_stack_n,
            group_by_overload_name=group_by_overload_name,
            include_python_functions=include_python_functions,
        )

    def events(self) -> Any:
        """List the operators and ranges of the last finished cycle as events; with `acc_events=True`, of all cycles.

        Returns:
            An `EventList`: a lazy view over the trace's columns.

        Raises:
            StateError: Nothing was recorded yet.
        """
        import_aside()
        trace = self._trace_of("all" if self._options.acc_events else None)
        with self._stopwatch.listing():
            from kinetoscope.torch_events.event_list import events_of

            return events_of(trace)

    def _need_memory(self, call: str) -> None:
        """Raise ArgumentError unless the session records memory."""
        if not self._options.profile_memory:
            raise ArgumentError(
                f"{call} needs a session with profile_memory=True, and this one has profile_memory=False."
            )

    def _trace_of(self, choice: CycleChoice) -> Trace:
        """Return the trace of the selected cycles, or raise NotRecordedError."""
        trace = self._cycles.trace(choice)
        if trace is None:
            raise NotRecordedError(f"there is no trace yet: {self._why_no_trace()}")
        return trace


def _checked_path(path: str | os.PathLike[str]) -> str:
    """Return a path to write to as a string, or raise ArgumentError."""
    untyped: object = path
    name = os.fspath(untyped) if isinstance(untyped, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"path={path!r} is not valid: need the name of a file, as a string or a path.")
    return name
