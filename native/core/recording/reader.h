// Reads a recording file, of a process that stopped, still runs or was killed, into columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../columns/column.h"
#include "clock.h"
#include "dictionary.h"
#include "format.h"

namespace kinetoscope {

// The bytes are not a recording that this reader can read: too short, another magic or version, impossible
// sizes.
class RefusedRecording : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Flags of a span as the columns show them.
enum SpanState : uint8_t {
  kStateAsync = 1,
  kStateUnfinished = 2,  // never ended; clipped, see clip_unfinished(). Or cut when the recording ended.
  kStateBegunBefore = 4,
  kStateInstant = 8,  // a moment, not a time
};

// Sorted by (thread, start, order in the file). Threads, stacks, modules, shapes and parameters are rows, -1
// for none; name and overload are string ids. Times are nanoseconds since the recording began.
struct SpanColumns {
  explicit SpanColumns(std::size_t rows);
  std::size_t size() const { return start_ns.size(); }
  // Keeps the first `rows` rows.
  void shrink(std::size_t rows);

  Column<int32_t> thread;
  Column<int64_t> start_ns, duration_ns;
  Column<int32_t> name, overload;
  Column<uint8_t> scope;
  Column<int64_t> sequence;
  Column<int32_t> forward_thread;
  Column<uint16_t> kept;  // see kKeptMask
  Column<int32_t> stack, module, shapes, parameter;
  Column<uint8_t> flags;  // SpanState
};

// Sorted by time. bytes == 0: `address` was freed.
struct AllocationColumns {
  explicit AllocationColumns(std::size_t rows);

  Column<int64_t> time_ns;
  Column<uint64_t> address;
  Column<int64_t> bytes;
  Column<int32_t> thread;
  Column<uint8_t> device_type;
  Column<int8_t> device_index;
  Column<int32_t> stack;
};

// Additional data of spans: a note's `span` is a row of SpanColumns. Sorted by thread, and by position in the
// file within a thread.
struct NoteColumns {
  explicit NoteColumns(std::size_t rows);
  std::size_t size() const { return span.size(); }
  // Keeps the first `rows` rows.
  void shrink(std::size_t rows);

  Column<int32_t> span;
  Column<uint8_t> kind;  // NoteKind
  Column<uint64_t> value;
  Column<int64_t> bytes;
  Column<int32_t> argument, parameter;  // parameter: a row, or of TensorVersion the version; -1 for none
  Column<uint8_t> device_type;
  Column<int8_t> device_index;
};

// Sorted by time. Threads, stacks and modules are rows, -1 for none.
struct SampleColumns {
  explicit SampleColumns(std::size_t rows);

  Column<int64_t> time_ns, period_ns;
  Column<int64_t> waited_ns;  // -1 where it is not known
  Column<int32_t> thread;
  Column<uint8_t> state;  // SampleState
  Column<uint8_t> wait;   // SampleWait
  Column<int32_t> stack, module;
};

// How many ranges of its name the recording had before a step of an optimizer, see kOptimizerStep; by row.
struct NumberedRange {
  int32_t span;  // a row of SpanColumns
  int64_t number;
};

// Some rows of a named table, as they were written at once.
struct TableRows {
  std::string_view table;
  uint32_t session;
  bool buffered;    // see kRowsBuffered
  int64_t time_ns;  // when they were written
  uint64_t rows;
  std::string_view json;  // an object: for each column the list of its values
};

// What is missing in the file, or could not be read.
struct RecordingLosses {
  uint64_t dropped_spans = 0, dropped_allocations = 0;
  uint64_t recycled_spans = 0, recycled_allocations = 0;
  uint64_t dropped_notes = 0, recycled_notes = 0;
  uint64_t unmatched_notes = 0;  // about a span that is not there
  uint64_t truncated_strings = 0, dropped_dictionary = 0;
  uint64_t ring_dropped_spans = 0, ring_dropped_allocations = 0, ring_dropped_notes = 0;
  uint64_t dropped_samples = 0, ring_dropped_samples = 0, recycled_samples = 0;
  uint64_t torn_samples = 0;
  uint64_t dropped_rows = 0, ring_dropped_rows = 0, recycled_rows = 0;
  uint64_t unknown_waits = 0;  // samples of a system that does not tell how long a thread had no processor
  uint64_t limited_dictionary = 0;
  uint64_t damaged_header = 0;
  uint64_t damaged_chunks = 0;      // bad header, or cut off by the end of the file
  uint64_t damaged_records = 0;     // committed but missing, or with an impossible time or size
  uint64_t damaged_entries = 0;     // invalid dictionary entries
  uint64_t unfinished_spans = 0;    // clipped
  uint64_t early_records = 0;       // began before the recording did; moved to its start
  uint64_t uncalibrated_clock = 0;  // 1: no two clock readings, ticks were taken as nanoseconds
};

struct Recording {
  bool stopped = false;
  uint32_t process = 0;
  int64_t start_realtime_ns = 0;
  int64_t start_monotonic_ns = -1;  // -1: not known
  int64_t stop_ns = 0;              // of stop(), or of the last record
  std::vector<ClockCheck> clock_checks;
  RecordingLosses losses;
  RecordingDictionary dictionary;
  std::deque<std::string> step_names;  // texts of `dictionary` that the file does not spell out
  std::vector<NumberedRange> optimizer_steps;
  std::vector<uint32_t> thread_index;  // row -> index in the file, ascending
  std::vector<uint64_t> left_out;      // ticks at which spans of other sessions began, see RangesOfOthers
  SpanColumns spans{0};
  AllocationColumns allocations{0};
  NoteColumns notes{0};
  SampleColumns samples{0};
  std::vector<std::vector<std::byte>> copies;  // memory that texts of a ring that is being recorded refer to
  std::vector<TableRows> rows;                 // by session, and there as they were written
};

// The row of a thread in `Recording::thread_index`.
int32_t row_of_thread(const std::vector<uint32_t>& indexes, uint32_t index);

// Number of bytes from the start of the file that a reader accesses; the size of the file if its header is
// not valid.
std::size_t used_bytes(std::span<const std::byte> file);

// Never fails on damage after the header: invalid data is left out and counted. The result's texts point into
// `file`, or into its own `copies`. The file may be growing meanwhile. Throws RefusedRecording.
Recording parse_recording(std::span<const std::byte> file);

// Gives the spans that never ended an end: that of the innermost ended span of the thread that encloses their
// start, since a call cannot outlast its caller; `stop_ns` when there is none. Spans that began on one thread
// and ended on another enclose nothing. Works on the spans of one thread, ordered by start; returns how many
// it clipped.
std::size_t clip_unfinished(std::span<const int64_t> start_ns, std::span<int64_t> duration_ns,
                            std::span<const uint8_t> flags, int64_t stop_ns);

}  // namespace kinetoscope
