#include <nanobind/stl/string.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "mapped_file.h"
#include "module.h"
#include "recording_reader.h"

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
  dict["stack"] = to_array(std::move(samples.stack));
  dict["module"] = to_array(std::move(samples.module));
  return dict;
}

nb::dict read_recording(const std::string& path) {
  try {
    const MappedFile file(path);
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
    result["allocations"] = allocations_dict(recording.allocations);
    result["notes"] = notes_dict(recording.notes);
    result["samples"] = samples_dict(recording.samples);
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

}  // namespace

void bind_recording(nb::module_& module) {
  define(module, "read_recording", &read_recording,
         R"(Reads a recording file, of a process that stopped, still runs or was killed.

Damage behind the header never fails: what makes no sense is left out and counted in "losses". Spans that never
ended get the end of the innermost ended span of their thread that encloses them, or the end of the recording.

Args:
    path: The file.

Returns:
    Tables as dicts of numpy columns; texts as lists of str. Times are nanoseconds since the recording began.

Raises:
    ValueError: The file is no recording, or one of another version.
    OSError: The file cannot be read.)",
         nb::arg("path"));
}

}  // namespace kinetoscope
