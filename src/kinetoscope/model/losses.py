"""What a trace is missing: the codes of all losses, their words and effects, and the rows of the table `losses`."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetoscope.model import units
from kinetoscope.model.step_plan import StepSampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kinetoscope.model.columns import Columns

# Counts that are part of the metadata of a recording.
TOLD_AT_STOP = ("recorder_faults", "call_threads_lost")

NOT_STOPPED = "recording_not_stopped"
UNFINISHED_SPANS = "unfinished_spans"
TORN_SAMPLES = "torn_samples"
UNKNOWN_WAITS = "unknown_waits"
UNREAD_GRADIENTS = "unread_gradients"
CALLS_MISSING = "calls_missing"
# Fewer torn samples, or a smaller share of all, change no number that a person sees.
_LEAST_TORN, _LEAST_TORN_SHARE = 10, 0.02


LOWER_BOUNDS = ("times", "counts", "memory", "device times", "device counts", "Python calls")
"""Effects of losses that make numbers too small."""
UNCERTAIN = ("all numbers", "durations in seconds", "times across clocks")
"""Effects of losses that may make numbers wrong."""
# As native/recorder/recording_file.cpp decides.
_NO_ROOM = "The file could not grow: a recording leaves 64 MiB of the disk free, or on a small disk a quarter of what was free at its start."


class Words(NamedTuple):
    """What people read of one kind of loss, where its maker does not know better: the columns of these names."""

    what: str
    where: str
    affects: str
    """What is not complete because of it, separated by commas; everything else is exact. `consequence` says it in a sentence."""
    why: str


# The native readers count under the codes themselves. Files keep codes: never give one another meaning.
CODES: dict[str, Words] = {
    NOT_STOPPED: Words("recording not stopped", "recording", "the end", "The process ended, or is still running, without stop(). Everything it had recorded until then is here."),
    "dropped_spans": Words("spans not written", "spans", "times, counts", _NO_ROOM),
    "dropped_allocations": Words("allocations not written", "allocations", "memory", _NO_ROOM),
    "summary_limit": Words("rows not in the summary", "summary", "rows of the summary", "A summary has a fixed size: of steps and collectives it has the last ones, of names those with most time."),
    "recycled_spans": Words("oldest spans overwritten", "spans", "times, counts", "The ring was full; a larger ring_bytes holds more."),
    "recycled_allocations": Words("oldest allocations overwritten", "allocations", "memory", "The ring was full; a larger ring_bytes holds more."),
    "ring_dropped_spans": Words("spans not written", "spans", "times, counts", "Other threads used the whole ring; a larger ring_bytes has room for more threads."),
    "ring_dropped_allocations": Words("allocations not written", "allocations", "memory", "Other threads used the whole ring; a larger ring_bytes has room for more threads."),
    "ring_dropped_notes": Words("operands or ids not written", "operands", "FLOPs, links", "Other threads used the whole ring; a larger ring_bytes has room for more threads."),
    "limited_dictionary": Words("lookups of names, stacks or shapes that were not stored", "dictionary", "names", "There were more distinct ones than fit in the recording's dictionary (half of ring_bytes, or 256 MiB)."),
    "damaged_header": Words("damaged header of the file", "file", "all numbers", "The file was changed after recording: times and counts may be wrong."),
    "dropped_notes": Words("operands or ids not written", "operands", "FLOPs, links", _NO_ROOM),
    "recycled_notes": Words("oldest operands or ids overwritten", "operands", "FLOPs, links", "The ring was full; a larger ring_bytes holds more."),
    "dropped_samples": Words("samples of Python stacks not written", "samples", "lines", _NO_ROOM),
    "recycled_samples": Words("oldest samples of Python stacks overwritten", "samples", "lines", "The ring was full; a larger ring_bytes holds more."),
    "ring_dropped_samples": Words("samples of Python stacks not written", "samples", "lines", "Other threads used the whole ring; a larger ring_bytes has room for more threads."),
    "dropped_rows": Words("rows of counters and other tables not written", "tables", "counters", _NO_ROOM),
    "ring_dropped_rows": Words("rows of counters and other tables not written", "tables", "counters", "Other threads used the whole ring; a larger ring_bytes has room for more threads."),
    "recycled_rows": Words("oldest rows of counters and other tables overwritten", "tables", "counters", "They had filled their share of the ring, an eighth; a larger ring_bytes holds more."),
    "last_second": Words("rows of the last second", "tables", "counters", "The recording was not stopped, and rows of this table are written once a second: the last ones may be missing."),
    TORN_SAMPLES: Words("samples of Python stacks that could not be read", "samples", "lines", "The stack changed, or the thread ended, while it was read: lines of short functions may have too little time."),
    UNKNOWN_WAITS: Words("samples without the time in which the thread had no CPU core", "samples", "waits", "This system does not report it: /proc/self/task/*/schedstat is missing. The trace cannot show whether other programs slowed this one down."),
    CALLS_MISSING: Words("Python calls", "spans", "Python calls", "They could not be recorded here."),
    "samples_missing": Words("samples of Python stacks", "samples", "lines", "The memory of the process cannot be read from outside here."),
    "unmatched_notes": Words("operands or ids without their span", "operands", "FLOPs, links", "Their span was overwritten or damaged."),
    "truncated_strings": Words("long strings truncated", "strings", "names", "A name or shape was longer than the recorder stores."),
    "dropped_dictionary": Words("names, stacks or modules not written", "dictionary", "names", "The file could not grow, so some spans have no name, stack or module."),
    "unknown_kernels": Words("kernels of compiled graphs without their modules", "origins", "modules of kernels", "They were compiled before the first session of the process, or cached by a run without one. Make the session before the first call of the compiled program, or use `kinetoscope run`."),
    "unknown_replays": Words("kernels of CUDA graphs without their captured operator", "origins", "operators of kernels", "The trace has no capture with the same kernels in the same order, or several. Record the capture, too."),
    "damaged_chunks": Words("damaged parts of the file skipped", "file", "times, counts, memory", "The file was truncated or changed after recording."),
    "skipped_storages": Words("tensors whose memory could not be inspected", "storages", "categories of memory", "Their class does not say where its data is. Their blocks may have no category."),
    UNREAD_GRADIENTS: Words("parameters whose gradient could not be inspected", "storages", "categories of memory", "Other threads were running whenever the recording looked at memory, and reading a gradient that another thread replaces can crash the program. Blocks of gradients from before the recording may have no category."),
    "recorder_faults": Words("operators or calls that could not be recorded", "spans", "times, counts", "The process was out of memory, or torch passed a value that the recorder does not support."),
    "call_threads_lost": Words("threads with missing Python calls", "spans", "Python calls", "Another profile function replaced ours during the recording."),
    UNFINISHED_SPANS: Words("unfinished spans", "spans", "the end", "They were still running when the recording ended, and are clipped there."),
    "damaged_records": Words("damaged records skipped", "file", "times, counts, memory", "They are incomplete, or their time or size is impossible: the file was truncated or changed after recording."),
    "damaged_entries": Words("damaged names, stacks or modules skipped", "dictionary", "names", "The file was changed after recording, so some spans have no name, stack or module."),
    "early_records": Words("records from before the recording began", "spans", "the start", "They are included, clipped to the start of the recording."),
    "uncalibrated_clock": Words("uncalibrated clock", "times", "durations in seconds", "Without a second clock reading, processor ticks count as nanoseconds: durations can be compared with each other, but are not in seconds."),
    "collection_paused": Words("collection paused by the program", "recording", "times, counts, memory", "The program paused it with toggle_collection_dynamic(); the times are in `info`, as `pauses`."),
    "sampled_steps": Words("gaps between recorded steps", "steps", "steps", "kinetoscope.leave_on records as many steps as its budget allows. The table `estimates` has the time in a step on average, with its interval."),
    "recording_taken": Words("every event of this recording", "the whole recording", "times, counts, memory", "torch.profiler ran while torch's own collector was recording for Kinetoscope, and took its events. Use one of them at a time, or the native engine, which can run together with torch.profiler."),
    "recording_thread_ended": Words("every event of this recording", "the whole recording", "times, counts, memory", "The thread that started torch's collector ended without stopping it, and torch dropped what it had collected. Call stop() on that thread, or use the native engine."),
    "threads_not_recorded": Words("threads that were not recorded", "threads", "times, counts", "torch's collector records the thread that started it, and its backward passes. The native engine records all threads."),
    "recording_unreadable": Words("every event of this recording", "the whole recording", "times, counts, memory", "The output of torch's collector could not be read."),
    "unwritable_names": Words("ranges whose names torch cannot write", "strings", "names", "torch writes `unknown` for names that are not ASCII, and replaces quotes and backslashes. The native engine records all names."),
    "devices_not_recorded": Words("device activity", "spans", "device times, device counts", "torch's collector failed."),
    "devices_interrupted": Words("interruptions of the recording of devices", "spans", "device times, device counts", "torch's collector was stopped and started again for another session: device work launched in between is missing."),
    "source_failed": Words("data of a source", "sources", "data of a source", "The source raised an error."),
    "counter_samples": Words("samples of counters", "counters", "counters", "Reading them failed."),
    "overwritten_worker_batches": Words("batches made by DataLoader workers", "processes", "loader batches", "A worker had made 16,384 more before these were read."),
    "killed_workers": Words("the end of a DataLoader worker", "processes", "the end", "It was killed: its last span extends to the end of the trace, although it ended before that."),
    "workers_not_recorded": Words("activity of DataLoader workers", "processes", "loader batches", "They started before the session (start it before the loop over the loader), or are not torch's own."),
    "processes_not_recorded": Words("processes that could not be recorded", "processes", "processes", "They used PyTorch, and recording them failed."),
    "processes_not_followed": Words("Python processes started without the start-up hook", "processes", "processes", "They were started with -I, -E or -S, or without the environment variables of the recording: if they used PyTorch, that is not recorded."),
    "uncompared_clocks": Words("process clocks that were not aligned", "times", "times across clocks", "They were merged by their wall clocks, or by the given offsets; the difference between the clocks is unknown. Record on one machine, or let the ranks align their clocks."),
    "contradictory_clock": Words("clock readings that contradict each other", "times", "times across clocks", "The clock was changed during the recording, or collectives of ranks were matched wrongly."),
    "device_clock_unknown": Words("common clock of host and devices", "spans", "times across clocks", "One of the two recorders has no start time: both are assumed to have started together."),
    "device_clock_misfit": Words("device times that do not match the host's", "spans", "times across clocks", "Runtime calls overlap the start or end of operators: device times are off."),
    "truncated_file": Words("truncated file", "file", "times, counts, memory", "The text ends in the middle, as when its writer was killed. Everything before that is here."),
    "bad_events": Words("unusable events", "events", "times, counts", "They are not JSON, lack a required field, or are counters whose value is not a number."),
    "bad_times": Words("events without a usable time", "events", "times, counts", "Their time or duration is missing, not a number, or exceeds 64 bits of nanoseconds. Only those with a time are included."),
    "negative_durations": Words("events that end before they start", "events", "times", "They are included with a duration of 0."),
    "implausible_durations": Words("implausible durations", "spans", "times", "They end more than an hour after everything else in the file, and are clipped where the rest ends."),
    "bad_texts": Words("damaged names and keys", "strings", "names", "They contain control characters or broken UTF-8: the file was changed, or written in another encoding."),
    "unsure_processes": Words("device work whose process is not certain", "spans", "links", "Several processes in the file use the same device ids and launch numbers: each kernel is shown in the process whose launch fits best."),
    "unmatched_ends": Words("ends of spans without a start", "events", "times, counts", "The start was before the recording, or was lost."),
    "unfinished_begins": Words("starts of spans without an end", "events", "the end", "They were still running when the recording ended, and are clipped at its last event."),
    "too_deep": Words("events nested too deeply", "events", "arguments", "They are included without the values that are nested too deeply."),
    "beyond_memory_limit": Words("events beyond the memory limit", "events", "times, counts, memory", "Columns and texts had reached the limit; max_memory_bytes of kinetoscope.open sets it."),
    "bad_header": Words("unreadable metadata of the run", "info", "metadata", "It is not valid JSON."),
    "bad_arguments": Words("distinct arguments that could not be read", "arguments", "arguments", "They are not JSON. Their events are included: without shapes, and with other arguments as one text."),
    "bad_ids": Words("damaged ids of processes, threads or arrows", "events", "links", "Their events are included, on a thread of their own or without their arrow."),
    "repeated_lists": Words("second list of events in one file", "file", "", "Its events are included: two traces may have been written into one file, or a part of one was overwritten."),
    "bad_memory_events": Words("unusable memory events", "allocations", "memory", "Their size is missing or not a number."),
    "missing_durations": Words("events without a duration", "events", "times", "They are included with a duration of 0."),
    "oversized_values": Words("events or metadata that are too large", "file", "times, counts", "The limits are 64 MiB of text for an event, or less in a damaged file, and 64 MiB for all metadata of the run."),
    "ignored_events": Words("events of an unsupported kind", "events", "events of other kinds", "Their phase is not that of slices, counters, arrows or instants."),
    "ascend_spans": Words("Ascend device slices shown as host work", "devices", "device work", "Traces of torch_npu do not mark device work as Kineto does: the tables of kernels, streams and idle time are empty."),
    "compiling_unreadable": Words("some of what torch.compile compiled", "compiles", "compilations", "This version of torch keeps its metrics of compilations in another way."),
    "text_after_end": Words("text after the end of the trace", "file", "", "The text was ignored."),
    "packed_cut": Words("truncated compressed file", "file", "times, counts, memory", "The compressed data ends in the middle, as when its writer was killed or a download was interrupted."),
    "packed_damaged": Words("damaged compressed file", "file", "times, counts, memory", "The data after the damage cannot be decompressed."),
    "bytes_after_end": Words("bytes after the end of the compressed data", "file", "", "They are not compressed data and were ignored."),
    "beyond_unpacking_limit": Words("file too large when decompressed", "file", "times, counts, memory", "The limit is max_uncompressed_bytes of kinetoscope.open; by default it is a multiple of the file's size."),
    "snapshot_lacks_spans": Words("operators, modules and device work", "spans", "operators", "A memory snapshot has only what the allocator did."),
    "snapshot_without_history": Words("the history of allocations", "allocations", "memory", "It was not recorded: call torch.cuda.memory._record_memory_history() before the program allocates."),
    "snapshot_without_stacks": Words("stacks of allocations", "allocations", "lines", "They were not recorded: call torch.cuda.memory._record_memory_history() before the program allocates."),
    "nsight_lacks_torch": Words("operators, modules and Python stacks", "spans", "operators", "Nsight Systems does not record them; NVTX ranges of emit_nvtx become operators."),
    "nsight_tables": Words("events of Nsight Systems that are not shown", "file", "events of other kinds", "Kinetoscope does not read this table of the export."),
    "nsight_graphs": Words("CUDA graphs without their kernels", "kernels", "kernels", "The recording has whole graphs: nsys profile --cuda-graph-trace=node records their kernels."),
    "nsight_warnings": Words("warnings of Nsight Systems about its recording", "file", "events of other kinds", "Details are in its own report."),
}  # fmt: skip
"""Every code -> what is missing, where and why. `docs/tables.md` lists them."""


_UNKNOWN = "times, counts, memory"


def effects(codes: Iterable[str]) -> list[str]:
    """What losses make incomplete, each effect once; a code of another release may affect everything."""
    listed = (CODES[code].affects if code in CODES else _UNKNOWN for code in codes)
    return list(dict.fromkeys(effect for affects in listed if affects for effect in affects.split(", ")))


def consequence(codes: Iterable[str]) -> str:
    """What losses do to the numbers of a trace, such as `times and counts are lower bounds`; empty if its numbers are exact."""
    affected = effects(codes)
    clauses = []
    for kinds, one, several in (
        (LOWER_BOUNDS, "is a lower bound", "are lower bounds"),
        (UNCERTAIN, "may be wrong", "may be wrong"),
    ):
        if words := [kind for kind in kinds if kind in affected]:
            clauses.append(f"{units.listed(words)} {one if words == ['memory'] else several}")
    return "; ".join(clauses)


def inexact(losses: Iterable[Mapping[str, Any]]) -> str:
    """Which numbers of a trace with these rows of `losses` are not exact, and why; empty if all are."""
    rows = [loss for loss in losses if consequence([loss["code"]])]
    causes = "; ".join(dict.fromkeys(counted(loss["what"], loss["count"]) for loss in rows))
    return f"{consequence(loss['code'] for loss in rows)}: {causes}" if rows else ""


def counted(what: str, count: int) -> str:
    """Say how much is missing in words that fit any count: `spans not written (12)`."""
    return f"{what} ({count:,})"


@dataclass(frozen=True)
class Loss:
    """One row of `losses`; the fields are its columns."""

    what: str
    count: int
    where: str
    why: str
    code: str

    @classmethod
    def of(cls, code: str, count: int = 1, *, what: str = "", where: str = "", why: str = "") -> Loss:
        """A loss with the words of its code, except for those given.

        Raises:
            KeyError: `CODES` has no such code.
        """
        words = CODES[code]
        return cls(what or words.what, count, where or words.where, why or words.why, code)


_COLUMNS = tuple(field.name for field in fields(Loss))


def counted_losses(counts: Mapping[str, int]) -> list[Loss]:
    """What a reader counted, by codes; zeros are left out. One that is newer than this code counts what has no words here."""
    return [
        Loss.of(code, int(count))
        if code in CODES
        else Loss(code.replace("_", " "), int(count), "recording", "It was counted by a newer release.", code)
        for code, count in counts.items()
        if count > 0
    ]


def sample_losses(torn: int, whole: int, missing: object) -> list[Loss]:
    """What the sampler of Python stacks missed.

    Args:
        torn: How many samples could not be read.
        whole: How many were read.
        missing: The metadata of that name: why there are no samples at all.
    """
    losses = [Loss.of("samples_missing", why=f"{missing}.")] if missing else []
    if torn >= max(_LEAST_TORN, _LEAST_TORN_SHARE * (torn + whole)):
        losses.append(Loss.of(TORN_SAMPLES, torn))
    return losses


def paused_losses(pauses: object) -> list[Loss]:
    """One loss for each activity that was off: how often, and for how long in all.

    Args:
        pauses: The metadata of that name: when collection was switched off, as the session noted it.
    """
    known = [pause for pause in pauses if isinstance(pause, dict)] if isinstance(pauses, list) else []
    losses: list[Loss] = []
    for activity in sorted({str(pause.get("activity")) for pause in known}):
        of_activity = [pause for pause in known if str(pause.get("activity")) == activity]
        lasted_ns = [_lasted_ns(pause) for pause in of_activity]
        ended_ns = [ns for ns in lasted_ns if ns is not None]
        parts = [f"{units.duration(sum(ended_ns))} in all"] if ended_ns else []
        parts += ["to the end of the recording"] if len(ended_ns) < len(lasted_ns) else []
        why = (
            f"The program paused it with toggle_collection_dynamic(): {', and once '.join(parts)}. What started then "
            "is missing; the times are in `info`, as `pauses`."
        )
        losses.append(Loss.of("collection_paused", len(of_activity), where=activity, why=why))
    return losses


def sampled_losses(info: Mapping[str, Any]) -> list[Loss]:
    """The loss of a recording in which only some steps were recorded, in place of its pauses; none of another one."""
    recorded, pauses = StepSampling.of(info).text(), info.get("pauses")
    if not recorded or not isinstance(pauses, list) or not pauses:
        return []
    why = (
        f"kinetoscope.leave_on recorded {recorded}, to keep to its budget. The table `estimates` has the time in a step on average, with "
        "its interval."
    )
    return [Loss.of("sampled_steps", len(pauses), why=why)]


def loss_columns(losses: Iterable[Loss]) -> dict[str, list[Any]]:
    """Losses as the columns of the table."""
    rows = [astuple(loss) for loss in losses]
    return {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}


def losses_of(columns: Mapping[str, Any] | Columns) -> list[Loss]:
    """The rows of a table `losses` that has all its columns."""
    rows = zip(*(columns[name] for name in _COLUMNS), strict=True)
    return [Loss(what, int(count), where, why, code) for what, count, where, why, code in rows]


def _lasted_ns(pause: Mapping[str, Any]) -> int | None:
    """How long a pause lasted; None when it had no end."""
    begin_ns, end_ns = pause.get("from_realtime_ns"), pause.get("to_realtime_ns")
    return max(0, end_ns - begin_ns) if isinstance(begin_ns, int) and isinstance(end_ns, int) else None
