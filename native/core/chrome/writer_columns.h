// The columns that a Chrome trace is written from. A column that may be empty then belongs to no row.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kinetoscope {

// Properties of a kind of spans that change how they are written.
enum ChromeTrait : uint8_t {
  kChromeCall = 1,    // of a Python function or a module
  kChromeModule = 2,  // of a module
  kChromeRange = 4,   // marked on the host; where a device shows it as well, it is not device work
};

inline constexpr int64_t kNoStreamNumber = INT64_MIN;

struct ChromeSpans {
  std::span<const int64_t> start_ns, duration_ns;
  std::span<const int32_t> name;  // string id
  std::span<const uint8_t> kind;  // index of a category
  std::span<const int32_t> thread, lane;
  std::span<const int64_t> sequence;               // -1: none
  std::span<const int32_t> forward_thread;         // row of threads
  std::span<const int32_t> stack, module, shapes;  // rows
  std::span<const uint8_t> flags;                  // SpanState
  // From here on each may be empty.
  std::span<const int64_t> record_function, event_index, external_id, correlation;  // -1: none
  std::span<const int64_t> call_number;  // of a call; where it is empty, they are numbered by their rows
  std::span<const int32_t> stream, arguments;  // rows
  std::span<const int32_t> category;           // string id; 0: that of its kind; -1: none
};

// One row for each kernel with known facts, in the order of their spans; -1 for an unknown fact.
struct ChromeKernels {
  std::span<const int32_t> span;
  std::span<const int32_t> grid_x, grid_y, grid_z, block_x, block_y, block_z, registers;
  std::span<const int64_t> shared_bytes;
  std::span<const double> blocks_per_sm, warps_per_sm, occupancy_percent;
  std::span<const int64_t> context, graph, graph_node;
};

struct ChromeCopies {
  std::span<const int32_t> span;
  std::span<const int64_t> bytes, context, graph, graph_node;
};

// Arrows from the start of one span to the start of another.
struct ChromeFlows {
  std::span<const int32_t> source, target;  // rows of spans
  std::span<const int64_t> id;              // one of its kind for each arrow
  std::span<const uint8_t> kind;            // index of flow_categories
};

struct ChromeAllocations {
  std::span<const int64_t> time_ns;
  std::span<const int32_t> thread;
  std::span<const uint64_t> address;  // 0: not known
  std::span<const int64_t> bytes;     // negative: freed
  std::span<const int64_t> total_bytes, reserved_bytes;
  std::span<const uint8_t> device_type;
  std::span<const int8_t> device_index;
};

struct ChromeCounters {
  std::span<const int64_t> time_ns;
  std::span<const int32_t> counter;  // index of counter_name
  std::span<const double> value;     // those that JSON cannot represent are left out
};

// Texts are UTF-8 with lone surrogates in their three-byte form. Invalid ones among those that should be JSON
// are left out.
struct ChromeTables {
  std::span<const std::string> strings;
  std::span<const int32_t> stack_parent, stack_frame;
  std::span<const int32_t> frame_function, frame_file, frame_line;
  std::span<const std::string> module_path, module_class;
  std::span<const int64_t> module_number;  // by module: its number within its class; -1, or empty: not known
  std::span<const std::string> shape_dims, shape_types, shape_concrete, shape_strides;  // JSON
  std::span<const std::string> arguments;                                               // JSON objects
  std::span<const std::string> categories, device_categories;                           // by kind
  std::span<const uint8_t> traits;  // by kind: ChromeTrait
  std::span<const std::string> flow_categories;
  std::span<const std::string> counter_name;
  std::span<const int64_t> counter_pid;                   // by counter: its process
  std::span<const int64_t> thread_torch_tid;              // by thread
  std::span<const int32_t> thread_first_track;            // by thread: its lane 0 among the tracks
  std::span<const int64_t> track_pid, track_tid;          // by track
  std::span<const int64_t> stream_device, stream_number;  // kNoStreamNumber: not to be written
};

struct ChromeColumns {
  ChromeSpans spans;
  ChromeKernels kernels;
  ChromeCopies copies;
  ChromeFlows flows;
  ChromeAllocations allocations;
  ChromeCounters counters;
};

}  // namespace kinetoscope
