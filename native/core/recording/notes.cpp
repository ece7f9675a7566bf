#include "notes.h"

#include <algorithm>
#include <cstring>

namespace kinetoscope {

NoteColumns::NoteColumns(std::size_t rows)
    : span(rows),
      kind(rows),
      value(rows),
      bytes(rows),
      argument(rows),
      parameter(rows),
      device_type(rows),
      device_index(rows) {}

void NoteColumns::shrink(std::size_t rows) {
  span.shrink(rows);
  kind.shrink(rows);
  value.shrink(rows);
  bytes.shrink(rows);
  argument.shrink(rows);
  parameter.shrink(rows);
  device_type.shrink(rows);
  device_index.shrink(rows);
}

void read_notes(Recording& recording, const ChunkList& chunks, const TickClock& clock, uint64_t start_tick) {
  std::size_t most = 0;
  for (const RecordChunk& chunk : chunks.notes) most += chunk.records;
  if (most == 0) return;
  const SpanColumns& spans = recording.spans;
  const std::size_t parameters = recording.dictionary.parameter_module.size();
  NoteColumns found(most);
  std::size_t rows = 0;
  TickReader ticks(clock, start_tick);
  int32_t thread = -1;
  std::size_t first = 0, last = 0, at = 0;
  for (const RecordChunk& chunk : chunks.notes) {
    if (const int32_t own = row_of_thread(recording.thread_index, chunk.thread); own != thread) {
      thread = own;
      const int32_t* threads = spans.thread.data();
      first = static_cast<std::size_t>(std::lower_bound(threads, threads + spans.size(), own) - threads);
      last = static_cast<std::size_t>(std::upper_bound(threads, threads + spans.size(), own) - threads);
      at = first;
    }
    for (std::size_t place = 0; place < chunk.records; ++place) {
      NoteRecord note;
      std::memcpy(&note, chunk.payload + place * sizeof(NoteRecord), sizeof(note));
      const int64_t start_ns = ticks.to_ns(note.span_tick);
      // Notes follow the order of their spans, so that the next is nearly always at hand.
      if (at >= last || spans.start_ns[at] > start_ns) at = first;
      if (at < last && spans.start_ns[at] != start_ns) {
        const int64_t* starts = spans.start_ns.data();
        const bool next = at + 1 < last && spans.start_ns[at + 1] == start_ns;
        at = next ? at + 1
                  : static_cast<std::size_t>(std::lower_bound(starts + at, starts + last, start_ns) - starts);
      }
      if (at >= last || spans.start_ns[at] != start_ns) {
        const auto& left_out = recording.left_out;
        if (!std::binary_search(left_out.begin(), left_out.end(), note.span_tick))
          ++recording.losses.unmatched_notes;
        continue;
      }
      found.span[rows] = static_cast<int32_t>(at);
      found.kind[rows] = note.kind;
      found.value[rows] = note.value;
      found.bytes[rows] = std::max<int64_t>(note.bytes, 0);
      found.argument[rows] = note.argument;
      const bool is_number = note.kind == static_cast<uint8_t>(NoteKind::TensorVersion) ||
                             note.kind == static_cast<uint8_t>(NoteKind::TensorContent);
      found.parameter[rows] =
          is_number || note.parameter - 1u < parameters ? static_cast<int32_t>(note.parameter - 1u) : -1;
      found.device_type[rows] = note.device_type;
      found.device_index[rows] = note.device_index;
      ++rows;
    }
  }
  found.shrink(rows);
  recording.notes = std::move(found);
}

}  // namespace kinetoscope
