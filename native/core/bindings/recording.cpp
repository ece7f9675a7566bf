#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "../recording/chunks.h"
#include "../recording/clone.h"
#include "../recording/cut.h"
#include "../recording/mapped_file.h"
#include "../recording/reader.h"
#include "module.h"

namespace kinetoscope {
namespace {

// Counters of a damaged header may be anything; tables of int64 must be able to hold them.
nb::int_ count(uint64_t value) {
  return nb::int_(std::min<uint64_t>(value, static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
}

nb::dict losses_dict(const RecordingLosses& losses) {
  nb::dict dict;
  dict["dropped_spans"] = count(losses.dropped_spans);
  dict["dropped_allocations"] = count(losses.dropped_allocations);
  dict["recycled_spans"] = count(losses.recycled_spans);
  dict["recycled_allocations"] = count(losses.recycled_allocations);
  dict["dropped_notes"] = count(losses.dropped_notes);
  dict["recycled_notes"] = count(losses.recycled_notes);
  dict["unmatched_notes"] = count(losses.unmatched_notes);
  dict["truncated_strings"] = count(losses.truncated_strings);
  dict["dropped_dictionary"] = count(losses.dropped_dictionary);
  dict["ring_dropped_spans"] = count(losses.ring_dropped_spans);
  dict["ring_dropped_allocations"] = count(losses.ring_dropped_allocations);
  dict["ring_dropped_notes"] = count(losses.ring_dropped_notes);
  dict["dropped_samples"] = count(losses.dropped_samples);
  dict["ring_dropped_samples"] = count(losses.ring_dropped_samples);
  dict["recycled_samples"] = count(losses.recycled_samples);
  dict["torn_samples"] = count(losses.torn_samples);
  dict["dropped_rows"] = count(losses.dropped_rows);
  dict["ring_dropped_rows"] = count(losses.ring_dropped_rows);
  dict["recycled_rows"] = count(losses.recycled_rows);
  dict["unknown_waits"] = count(losses.unknown_waits);
  dict["limited_dictionary"] = count(losses.limited_dictionary);
  dict["damaged_header"] = count(losses.damaged_header);
  dict["damaged_chunks"] = count(losses.damaged_chunks);
  dict["damaged_records"] = count(losses.damaged_records);
  dict["damaged_entries"] = count(losses.damaged_entries);
  dict["unfinished_spans"] = count(losses.unfinished_spans);
  dict["early_records"] = count(losses.early_records);
  dict["uncalibrated_clock"] = count(losses.uncalibrated_clock);
  return dict;
}

nb::dict clock_checks_dict(const std::vector<ClockCheck>& checks) {
  Column<int64_t> time_ns(checks.size()), error_ns(checks.size());
  for (std::size_t row = 0; row < checks.size(); ++row) {
    time_ns[row] = checks[row].time_ns;
    error_ns[row] = checks[row].error_ns;
  }
  nb::dict dict;
  dict["time_ns"] = to_array(std::move(time_ns));
  dict["error_ns"] = to_array(std::move(error_ns));
  return dict;
}

nb::dict threads_dict(const Recording& recording) {
  const std::vector<uint32_t>& indexes = recording.thread_index;
  Column<int64_t> index(indexes.size()), os_tid(indexes.size()), torch_tid(indexes.size());
  nb::list name;
  for (std::size_t row = 0; row < indexes.size(); ++row) {
    const auto at = recording.dictionary.threads.find(indexes[row]);
    const RecordingDictionary::Thread thread =
        at == recording.dictionary.threads.end() ? RecordingDictionary::Thread{} : at->second;
    index[row] = indexes[row];
    os_tid[row] = thread.os_tid;
    torch_tid[row] = thread.torch_tid;
    name.append(to_str(thread.name));
  }
  nb::dict dict;
  dict["index"] = to_array(std::move(index));
  dict["os_tid"] = to_array(std::move(os_tid));
  dict["torch_tid"] = to_array(std::move(torch_tid));
  dict["name"] = name;
  return dict;
}

void add_dictionary(nb::dict& result, RecordingDictionary& tables) {
  nb::dict info;
  for (const auto& [key, value] : tables.info) info[to_str(key)] = to_str(value);
  result["info"] = info;
  result["strings"] = to_str_list(tables.strings);
  nb::dict frames, stacks, modules, parameters, shapes, names;
  frames["function"] = to_array(std::move(tables.frame_function));
  frames["file"] = to_array(std::move(tables.frame_file));
  frames["line"] = to_array(std::move(tables.frame_line));
  frames["first_line"] = to_array(std::move(tables.frame_first_line));
  stacks["parent"] = to_array(std::move(tables.stack_parent));
  stacks["frame"] = to_array(std::move(tables.stack_frame));
  modules["parent"] = to_array(std::move(tables.module_parent));
  modules["name"] = to_array(std::move(tables.module_name));
  modules["class"] = to_array(std::move(tables.module_class));
  modules["caller"] = to_array(std::move(tables.module_caller));
  modules["address"] = to_array(std::move(tables.module_address));
  parameters["module"] = to_array(std::move(tables.parameter_module));
  parameters["name"] = to_array(std::move(tables.parameter_name));
  parameters["address"] = to_array(std::move(tables.parameter_address));
  shapes["dims"] = to_str_list(tables.shape_dims);
  shapes["types"] = to_str_list(tables.shape_types);
  shapes["concrete"] = to_str_list(tables.shape_concrete);
  shapes["strides"] = to_str_list(tables.shape_strides);
  names["string"] = to_array(std::move(tables.name_string));
  names["overload"] = to_array(std::move(tables.name_overload));
  result["frames"] = frames;
  result["stacks"] = stacks;
  result["modules"] = modules;
  result["parameters"] = parameters;
  result["shapes"] = shapes;
  result["names"] = names;
}

nb::dict spans_dict(SpanColumns& spans) {
  nb::dict dict;
  dict["thread"] = to_array(std::move(spans.thread));
  dict["start_ns"] = to_array(std::move(spans.start_ns));
  dict["duration_ns"] = to_array(std::move(spans.duration_ns));
  dict["name"] = to_array(std::move(spans.name));
  dict["overload"] = to_array(std::move(spans.overload));
  dict["scope"] = to_array(std::move(spans.scope));
  dict["sequence"] = to_array(std::move(spans.sequence));
  dict["forward_thread"] = to_array(std::move(spans.forward_thread));
  dict["kept"] = to_array(std::move(spans.kept));
  dict["stack"] = to_array(std::move(spans.stack));
  dict["module"] = to_array(std::move(spans.module));
  dict["shapes"] = to_array(std::move(spans.shapes));
  dict["parameter"] = to_array(std::move(spans.parameter));
  dict["flags"] = to_array(std::move(spans.flags));
  return dict;
}

nb::dict optimizer_steps_dict(const std::vector<NumberedRange>& steps) {
  Column<int32_t> span(steps.size());
  Column<int64_t> number(steps.size());
  for (std::size_t at = 0; at < steps.size(); ++at) {
    span[at] = steps[at].span;
    number[at] = steps[at].number;
  }
  nb::dict dict;
  dict["span"] = to_array(std::move(span));
  dict["number"] = to_array(std::move(number));
  return dict;
}

nb::dict allocations_dict(AllocationColumns& allocations) {
  nb::dict dict;
  dict["time_ns"] = to_array(std::move(allocations.time_ns));
  dict["address"] = to_array(std::move(allocations.address));
  dict["bytes"] = to_array(std::move(allocations.bytes));
  dict["thread"] = to_array(std::move(allocations.thread));
  dict["device_type"] = to_array(std::move(allocations.device_type));
  dict["device_index"] = to_array(std::move(allocations.device_index));
  dict["stack"] = to_array(std::move(allocations.stack));
  return dict;
}

nb::dict notes_dict(NoteColumns& notes) {
  nb::dict dict;
  dict["span"] = to_array(std::move(notes.span));
  dict["kind"] = to_array(std::move(notes.kind));
  dict["value"] = to_array(std::move(notes.value));
  dict["bytes"] = to_array(std::move(notes.bytes));
  dict["argument"] = to_array(std::move(notes.argument));
  dict["parameter"] = to_array(std::move(notes.parameter));
  dict["device_type"] = to_array(std::move(notes.device_type));
  dict["device_index"] = to_array(std::move(notes.device_index));
  return dict;
}

nb::dict samples_dict(SampleColumns& samples) {
  nb::dict dict;
  dict["time_ns"] = to_array(std::move(samples.time_ns));
  dict["period_ns"] = to_array(std::move(samples.period_ns));
  dict["waited_ns"] = to_array(std::move(samples.waited_ns));
  dict["thread"] = to_array(std::move(samples.thread));
  dict["state"] = to_array(std::move(samples.state));
  dict["wait"] = to_array(std::move(samples.wait));
  dict["stack"] = to_array(std::move(samples.stack));
  dict["module"] = to_array(std::move(samples.module));
  return dict;
}

// For each table, by its name, the rows that were appended at once, each as a dict.
nb::dict rows_dict(const std::vector<TableRows>& all) {
  nb::dict tables;
  for (const TableRows& rows : all) {
    nb::dict written;
    written["session"] = rows.session;
    written["buffered"] = rows.buffered;
    written["time_ns"] = rows.time_ns;
    written["rows"] = rows.rows;
    written["json"] = nb::bytes(rows.json.data(), rows.json.size());
    const nb::str table = to_str(rows.table);
    if (!tables.contains(table)) tables[table] = nb::list();
    nb::cast<nb::list>(tables[table]).append(written);
  }
  return tables;
}

// What `read` makes of a mapped recording; its exceptions become those of Python.
template <typename Read>
auto of_recording(const std::string& path, Read read) {
  try {
    const MappedFile file(path);
    auto result = read(file);
    if (file.file_lost()) throw RefusedRecording("another program truncated the file while it was read");
    return result;
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
  } catch (const RefusedRecording& refused) {
    throw nb::value_error((path + ": " + refused.what()).c_str());
  }
}

nb::dict read_recording(const std::string& path) {
  return of_recording(path, [](const MappedFile& file) {
    Recording recording;
    {
      nb::gil_scoped_release released;
      file.prefetch(used_bytes(file.bytes()));
      recording = parse_recording(file.bytes());
    }
    nb::dict result;
    result["state"] = recording.stopped ? "stopped" : "recording";
    result["process"] = recording.process;
    result["start_realtime_ns"] = recording.start_realtime_ns;
    result["start_monotonic_ns"] = recording.start_monotonic_ns;
    result["stop_ns"] = recording.stop_ns;
    result["clock_checks"] = clock_checks_dict(recording.clock_checks);
    result["losses"] = losses_dict(recording.losses);
    result["threads"] = threads_dict(recording);
    add_dictionary(result, recording.dictionary);
    result["spans"] = spans_dict(recording.spans);
    result["optimizer_steps"] = optimizer_steps_dict(recording.optimizer_steps);
    result["allocations"] = allocations_dict(recording.allocations);
    result["notes"] = notes_dict(recording.notes);
    result["samples"] = samples_dict(recording.samples);
    result["rows"] = rows_dict(recording.rows);
    return result;
  });
}

nb::dict recording_progress(const std::string& path) {
  return of_recording(path, [](const MappedFile& file) {
    RecordingProgress progress;
    {
      nb::gil_scoped_release released;
      progress = progress_of(file.bytes());
    }
    nb::dict result;
    result["stopped"] = progress.stopped;
    result["process"] = progress.process;
    result["position"] = progress.position;
    return result;
  });
}

// The layout of recording/format.h, for what reads or writes recordings beside this library.
nb::dict recording_layout() {
  nb::dict layout;
  layout["magic"] = nb::bytes(kMagic, sizeof(kMagic));
  layout["version"] = kVersion;
  layout["header_bytes"] = kHeaderBytes;
  layout["unit_bytes"] = kUnitBytes;
  layout["clock_pairs"] = kMaxClockPairs;
  layout["chunk_magic"] = kChunkMagic;
  layout["chunk_header_bytes"] = sizeof(ChunkHeader);
  const auto at = [&layout](const char* field, std::size_t offset) { layout[field] = offset; };
  at("header.chunk_bytes", offsetof(FileHeader, chunk_bytes));
  at("header.state", offsetof(FileHeader, state));
  at("header.process", offsetof(FileHeader, process));
  at("header.chunks", offsetof(FileHeader, chunks));
  at("header.pairs", offsetof(FileHeader, pairs));
  at("header.dropped_notes", offsetof(FileHeader, dropped_notes));
  at("header.dropped_samples", offsetof(FileHeader, dropped_samples));
  at("header.orders", offsetof(FileHeader, orders));
  at("header.dictionary_collections", offsetof(FileHeader, dictionary_collections));
  at("chunk.kind", offsetof(ChunkHeader, kind));
  at("chunk.units", offsetof(ChunkHeader, units));
  at("chunk.order", offsetof(ChunkHeader, order));
  at("chunk.committed", offsetof(ChunkHeader, committed));
  nb::dict kinds, record_bytes;
  for (const auto& [name, kind] : {std::pair{"free", ChunkKind::Free},
                                   {"spans", ChunkKind::Spans},
                                   {"allocations", ChunkKind::Allocations},
                                   {"dictionary", ChunkKind::Dictionary},
                                   {"notes", ChunkKind::Notes},
                                   {"samples", ChunkKind::Samples},
                                   {"rows", ChunkKind::Rows}}) {
    kinds[name] = static_cast<uint32_t>(kind);
    record_bytes[name] = bytes_of_record(static_cast<uint32_t>(kind));
  }
  layout["chunk_kinds"] = kinds;
  layout["record_bytes"] = record_bytes;
  layout["span_bytes_before_7"] = bytes_of_record(static_cast<uint32_t>(ChunkKind::Spans), 6);
  nb::dict notes;
  notes["operand"] = static_cast<uint8_t>(NoteKind::Operand);
  notes["gradient"] = static_cast<uint8_t>(NoteKind::Gradient);
  notes["record_function"] = static_cast<uint8_t>(NoteKind::RecordFunction);
  notes["between_ranks"] = static_cast<uint8_t>(NoteKind::BetweenRanks);
  notes["arguments"] = static_cast<uint8_t>(NoteKind::Arguments);
  notes["tensor_version"] = static_cast<uint8_t>(NoteKind::TensorVersion);
  notes["tensor_content"] = static_cast<uint8_t>(NoteKind::TensorContent);
  layout["note_kinds"] = notes;
  return layout;
}

// Calls `make`, which writes `target` from `source`, with errors as Python has them.
template <typename Make>
void make_recording(const std::string& source, const std::string& target, Make make) {
  try {
    nb::gil_scoped_release released;
    make();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, target.c_str());
    throw nb::python_error();
  } catch (const RefusedRecording& refused) {
    throw nb::value_error((source + ": " + refused.what()).c_str());
  }
}

void cut_recording_file(const std::string& source, uint32_t session, const std::string& target,
                        std::optional<int64_t> from_ns, std::optional<int64_t> to_ns,
                        std::optional<int64_t> first_step) {
  std::optional<CutTimes> times;
  if (from_ns || to_ns)
    times = CutTimes{.from_ns = from_ns.value_or(0),
                     .to_ns = to_ns.value_or(INT64_MAX),
                     .first_step = first_step.value_or(-1)};
  make_recording(source, target, [&] {
    const MappedFile file(source);
    cut_recording(file.bytes(), session, target, times);
    if (file.file_lost()) throw RefusedRecording("another program truncated the file while it was read");
  });
}

void clone_recording_file(const std::string& source, const std::string& target) {
  make_recording(source, target, [&] { clone_recording(source, target); });
}

}  // namespace

void bind_recording(nb::module_& module) {
  define(module, "read_recording", &read_recording,
         R"(Reads a recording file, of a process that stopped, still runs or was killed.

Damage behind the header never fails: what makes no sense is left out and counted in "losses". Spans that never
ended get the end of the innermost ended span of their thread that encloses them, or the end of the recording.

Args:
    path: The file.

Returns:
    Tables as dicts of numpy columns; texts as lists of str. "optimizer_steps" has the rows of spans that are steps of
    optimizers, and how many of the same name the recording had before each.
    Times are nanoseconds since the recording began.
    "rows" has for each named table what was appended to it at once: a list of dicts with the rows as JSON.

Raises:
    ValueError: The file is no recording, or one of another version.
    OSError: The file cannot be read.)",
         nb::arg("path"));
  define(module, "cut_recording", &cut_recording_file,
         R"(Writes what one of the sessions that share a recording has recorded to a file of its own.

The recording may still grow. What the session did not ask for is left out.

Args:
    source: The recording.
    session: The number of the session, counted from 0 in the order in which they began.
    target: The new file, which must not be there yet.
    from_ns: When a window of the part begins, in nanoseconds since the part did; None for all from its beginning. Spans
        that are open then, or at `to_ns`, are cut there.
    to_ns: When that window ends, exclusive; None for all until its end.
    first_step: The number of the first step in the window, where steps are counted.

Raises:
    ValueError: The source is no recording, or one of another version.
    OSError: A file cannot be read or written.)",
         nb::arg("source"), nb::arg("session"), nb::arg("target"), nb::arg("from_ns") = nb::none(),
         nb::arg("to_ns") = nb::none(), nb::arg("first_step") = nb::none());
  define(module, "clone_recording", &clone_recording_file,
         R"(Copies a recording as it is at this moment, with all of its sessions, to a file of its own.

The recording goes on meanwhile, and nobody waits. What a ring uses again while it is copied is left out, and counted as
overwritten. The copy is a recording that was stopped.

Args:
    source: The recording.
    target: The new file, which must not be there yet.

Raises:
    ValueError: The source is no recording, or one of another version.
    OSError: A file cannot be read or written.)",
         nb::arg("source"), nb::arg("target"));
  define(module, "recording_progress", &recording_progress,
         R"(Finds how far a recording is, from its headers alone.

Args:
    path: The file.

Returns:
    `stopped`, `process` (the id of the process that records or did), and `position`, another number whenever records
    or dictionary entries were added or lost.

Raises:
    ValueError: The file is no recording, or one of another version.
    OSError: The file cannot be read.)",
         nb::arg("path"));
  define(module, "recording_layout", &recording_layout,
         "Returns the layout of recordings: magic, version, sizes and offsets in bytes, and the numbers of "
         "kinds.");
}

}  // namespace kinetoscope
