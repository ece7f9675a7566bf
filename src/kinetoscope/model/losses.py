"""What a trace is missing: the codes of all losses, their words, and the rows of the table `losses`."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetoscope.model import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kinetoscope.model.columns import Columns

# Counts that stand among the metadata of a recording.
TOLD_AT_STOP = ("recorder_faults", "call_threads_lost")

NOT_STOPPED = "recording_not_stopped"
UNFINISHED_SPANS = "unfinished_spans"


class Words(NamedTuple):
    """What people read of one kind of loss, where its maker does not know better: the columns of these names."""

    what: str
    where: str
    why: str


# The native readers count under the codes themselves. Files keep codes: never give one another meaning.
CODES: dict[str, Words] = {
    NOT_STOPPED: Words(
        "recording not stopped",
        "recording",
        "The process ended, or still runs, without stop(): what it had recorded by then is all here.",
    ),
    "dropped_spans": Words("spans not written", "spans", "The file could not grow, most likely a full disk."),
    "dropped_allocations": Words(
        "allocations not written",
        "allocations",
        "The file could not grow, most likely a full disk.",
    ),
    "recycled_spans": Words(
        "oldest spans overwritten",
        "spans",
        "The ring of fixed size was full; a larger ring keeps more.",
    ),
    "recycled_allocations": Words(
        "oldest allocations overwritten",
        "allocations",
        "The ring of fixed size was full; a larger ring keeps more.",
    ),
    "ring_dropped_spans": Words(
        "spans not written",
        "spans",
        "Other threads were using all of the ring; a larger ring_bytes has room for more threads.",
    ),
    "ring_dropped_allocations": Words(
        "allocations not written",
        "allocations",
        "Other threads were using all of the ring; a larger ring_bytes has room for more threads.",
    ),
    "ring_dropped_notes": Words(
        "notes on operands or ids not written",
        "operands",
        "Other threads were using all of the ring; a larger ring_bytes has room for more threads.",
    ),
    "limited_dictionary": Words(
        "lookups of names, stacks or shapes that were not kept",
        "dictionary",
        "There were more different ones than the recording's dictionary has room for (half of ring_bytes, or 256 MiB).",
    ),
    "damaged_header": Words(
        "damaged header of the file",
        "file",
        "The file was changed after recording: times and counts may be wrong.",
    ),
    "dropped_notes": Words(
        "notes on operands or ids not written",
        "operands",
        "The file could not grow, most likely a full disk.",
    ),
    "recycled_notes": Words(
        "oldest notes on operands or ids overwritten",
        "operands",
        "The ring of fixed size was full; a larger ring keeps more.",
    ),
    "unmatched_notes": Words(
        "notes on operands or ids without their span",
        "operands",
        "The span they belong to was overwritten or damaged.",
    ),
    "truncated_strings": Words(
        "long strings cut",
        "strings",
        "A name or shape was longer than the recorder keeps.",
    ),
    "dropped_dictionary": Words(
        "names, stacks or modules not written",
        "dictionary",
        "The file could not grow, so some spans have no name, stack or module.",
    ),
    "damaged_chunks": Words(
        "damaged parts of the file skipped",
        "file",
        "The file was cut short or changed after recording.",
    ),
    "skipped_storages": Words(
        "tensors whose memory could not be looked at",
        "storages",
        "They are of a class that does not tell where its data lies; their blocks may lack a category.",
    ),
    "recorder_faults": Words(
        "operators or calls that failed to be recorded",
        "spans",
        "Memory was out, or torch held something that the recorder does not know.",
    ),
    "call_threads_lost": Words(
        "threads whose Python calls are missing in part",
        "spans",
        "Another profile function took the place of ours while recording.",
    ),
    UNFINISHED_SPANS: Words(
        "spans without an end",
        "spans",
        "They were still running when the recording ended, and are cut at that time.",
    ),
    "damaged_records": Words(
        "damaged records skipped",
        "file",
        "They are missing, or their time or size is impossible: the file was cut short or changed after recording.",
    ),
    "damaged_entries": Words(
        "damaged names, stacks or modules skipped",
        "dictionary",
        "The file was changed after recording, so some spans have no name, stack or module.",
    ),
    "early_records": Words(
        "records from before the recording began",
        "spans",
        "They are kept, and begin where the recording does.",
    ),
    "uncalibrated_clock": Words(
        "clock without two readings",
        "times",
        "The processor's ticks were taken for nanoseconds: durations compare with each other, but are not in seconds.",
    ),
    "collection_paused": Words(
        "collection switched off by the program",
        "recording",
        "The program switched it off by toggle_collection_dynamic(): `info` has the times as `pauses`.",
    ),
    "recording_taken": Words(
        "every event of this recording",
        "the whole recording",
        "torch.profiler ran while torch's own collector was recording for Kinetoscope, and took the events: "
        "use one of them at a time, or the native engine, which can run beside torch.profiler.",
    ),
    "recording_unreadable": Words(
        "every event of this recording",
        "the whole recording",
        "What torch's collector wrote could not be read.",
    ),
    "unwritable_names": Words(
        "ranges whose name torch cannot write",
        "strings",
        "torch writes `unknown` for a name with other characters than those of ASCII, and puts other characters in the place "
        "of quotes and backslashes. The native engine keeps them.",
    ),
    "devices_not_recorded": Words("what ran on devices", "spans", "torch's collector failed."),
    "source_failed": Words("what a source records", "sources", "The source raised an error."),
    "counter_samples": Words("samples of counters", "counters", "Reading them failed."),
    "overwritten_worker_batches": Words(
        "batches that DataLoader workers made",
        "processes",
        "A worker keeps only its last batches; record for a shorter time, by a schedule.",
    ),
    "killed_workers": Words(
        "the end of a DataLoader worker",
        "processes",
        "It was killed: what it did last is shown until the end of the trace, though it ended before that.",
    ),
    "workers_not_recorded": Words(
        "what DataLoader workers did",
        "processes",
        "They began before the session did (begin it before the loop over the loader), or are not torch's own.",
    ),
    "processes_not_recorded": Words(
        "processes that could not be recorded",
        "processes",
        "They used PyTorch, and recording them failed.",
    ),
    "processes_not_followed": Words(
        "Python processes started without the start-up hook",
        "processes",
        "They were started with -I, -E or -S, or without the environment variables that --children sets: if they used "
        "PyTorch, that is not recorded.",
    ),
    "uncompared_clocks": Words(
        "clocks of processes that were not compared",
        "times",
        "They were put on one axis by what their clocks showed, or by the given offsets: how far the clocks were apart "
        "is unknown. Record them on one machine, or let the ranks align their clocks.",
    ),
    "contradictory_clock": Words(
        "moments that no straight clock fits",
        "times",
        "The clock was set or bent while it recorded, or calls of ranks were taken for each other.",
    ),
    "device_clock_unknown": Words(
        "one clock for host and devices",
        "spans",
        "One of the two recorders does not say when it began: both were taken to have begun together.",
    ),
    "device_clock_misfit": Words(
        "device times that do not fit the host's",
        "spans",
        "Calls of the device's runtime have the begin or end of an operator inside them: times of devices are off.",
    ),
    "truncated_file": Words(
        "file that breaks off",
        "file",
        "The text ends in the middle, as when its writer was killed: everything before that is here.",
    ),
    "bad_events": Words(
        "events that could not be used",
        "events",
        "They are no JSON, lack what every event needs, or are counters whose value is no number.",
    ),
    "bad_times": Words(
        "events without a usable time",
        "events",
        "Their time or duration is missing, no number, or beyond what 64 bits of nanoseconds hold; only those with a time are kept.",
    ),
    "negative_durations": Words(
        "events that end before they begin",
        "events",
        "They are kept, with a duration of 0.",
    ),
    "unmatched_ends": Words(
        "ends of spans without their begin",
        "events",
        "The begin lies before the recording, or was lost.",
    ),
    "unfinished_begins": Words(
        "begins of spans without their end",
        "events",
        "They were still running when the recording ended, and are cut at its last event.",
    ),
    "too_deep": Words(
        "events nested deeper than is read",
        "events",
        "They are kept, without the values that are nested too deeply.",
    ),
    "beyond_memory_limit": Words(
        "events beyond the memory limit",
        "events",
        "Columns and texts had reached it; max_memory_bytes of kinetoscope.open sets it.",
    ),
    "bad_header": Words(
        "facts of the run that could not be read",
        "info",
        "They, or what separates them, are no JSON.",
    ),
    "bad_arguments": Words(
        "different texts of arguments that could not be read",
        "arguments",
        "They are no JSON. Their events are kept: shapes are missing there, other arguments are one text.",
    ),
    "bad_ids": Words(
        "numbers of processes, threads or arrows that are damaged",
        "events",
        "Their events are kept, on a thread of their own or without their arrow.",
    ),
    "repeated_lists": Words(
        "further list of events in one file",
        "file",
        "Its events are here, too: two traces may have been written into one file, or a part of one was overwritten.",
    ),
    "bad_memory_events": Words(
        "marks of memory that could not be used",
        "allocations",
        "Their size is missing or no number.",
    ),
    "missing_durations": Words("events without a duration", "events", "They are kept, with a duration of 0."),
    "oversized_values": Words(
        "events or facts of the run too large to keep",
        "file",
        "One event may have up to 64 MiB of text, or less in a damaged file, and all facts of the run together 64 MiB.",
    ),
    "ignored_events": Words(
        "events of a kind that is not read",
        "events",
        "Their phase is none that slices, counters, arrows or marks have.",
    ),
    "ascend_spans": Words(
        "slices of an Ascend device taken for work of the host",
        "devices",
        "Traces of torch_npu do not say in Kineto's way what ran on the device: its tables of kernels, streams and idle time are empty.",
    ),
    "text_after_end": Words("file with text after the end of the trace", "file", "The text was left out."),
    "packed_cut": Words(
        "compressed file cut short",
        "file",
        "The compressed file ends before its end, as when its writer was killed or a download broke off.",
    ),
    "packed_damaged": Words(
        "damaged place in the compressed file",
        "file",
        "What comes after the damage cannot be unpacked.",
    ),
    "bytes_after_end": Words(
        "bytes after the end of the compressed data",
        "file",
        "They are not compressed data and were left out.",
    ),
    "beyond_unpacking_limit": Words(
        "file too large when unpacked",
        "file",
        "The limit is max_uncompressed_bytes of kinetoscope.open, or without it a multiple of the file's size.",
    ),
}
"""Every code -> what is missing, where and why. `docs/tables.md` lists them."""


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
        else Loss(code.replace("_", " "), int(count), "recording", "A newer release counted it.", code)
        for code, count in counts.items()
        if count > 0
    ]


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
            f"The program switched it off by toggle_collection_dynamic(): {', and once '.join(parts)}. What began then ran, "
            "but is not here; `info` has the times as `pauses`."
        )
        losses.append(Loss.of("collection_paused", len(of_activity), where=activity, why=why))
    return losses


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
