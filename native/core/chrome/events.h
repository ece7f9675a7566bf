// Converts the events of a Chrome trace to rows, which grow while the text is read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../columns/growing_column.h"
#include "../columns/packed_texts.h"
#include "../columns/text_table.h"
#include "arguments.h"

namespace kinetoscope {

// How the events of a category are converted.
struct ChromeCategory {
  uint8_t kind;
  bool on_device;
};

// Kinds and flags of spans, as kinetoscope.model.schema numbers them.
inline constexpr uint8_t kKindUserAnnotation = 2, kKindPython = 4, kKindModule = 5, kKindKernel = 6,
                         kKindMemcpy = 7, kKindMemset = 8;
// The largest distance of a time from 0, so that the difference of any two fits into 64 bits. In nanoseconds
// since 1970, that is until the year 2116.
inline constexpr int64_t kLatestNs = (int64_t{1} << 62) - 1;
inline constexpr uint8_t kFlagAsync = 1, kFlagUnfinished = 2, kFlagInstant = 8;

// The raw values of one event; empty where it has none.
struct ChromeEvent {
  std::string_view phase, category, name, process, thread, time, duration, id, scope, frame;
  std::string_view thread_time, thread_duration;
};

// A process or thread as a raw value of `pid` or `tid` names it: a number, or else a text, which may contain
// a number.
void identify(std::string_view raw, int64_t& number, std::string& text);

struct ChromeThread {
  int64_t process = -1, number = -1;
  std::string process_text, number_text;  // empty where it is a number
  bool on_device = false;
};

struct ChromeWindow {
  std::string name;
  int64_t start_ns, duration_ns;
  int32_t thread;  // of the host, the last before it in the file; -1 without
};

struct ChromeSpanRows {
  std::size_t rows = 0;
  PackedColumn start_ns{0}, duration_ns{0}, name{0}, thread{0}, category{-1};
  PackedColumn kind{0}, flags{0};
  PackedColumn correlation{-1}, external_id{-1}, sequence{-1}, forward_number{-1}, record_function{-1},
      event_index{-1};
  PackedColumn shapes{-1}, arguments{-1}, call_stack{-1}, device_index{-1};

  std::size_t bytes() const;
};

struct ChromeKernelRows {
  std::size_t rows = 0;
  PackedColumn span{-1}, grid_x{-1}, grid_y{-1}, grid_z{-1}, block_x{-1}, block_y{-1}, block_z{-1},
      registers{-1};
  PackedColumn shared_bytes{-1}, context{-1}, graph{-1}, graph_node{-1};
  GrowingColumn<float> blocks_per_sm{-1}, warps_per_sm{-1}, occupancy_percent{-1};

  std::size_t bytes() const;
};

struct ChromeCopyRows {
  std::size_t rows = 0;
  PackedColumn span{-1};
  PackedColumn bytes_moved{-1}, context{-1}, graph{-1}, graph_node{-1};

  std::size_t bytes() const;
};

struct ChromeAllocationRows {
  std::size_t rows = 0;
  PackedColumn time_ns{0}, address{0}, bytes_taken{0}, freed_bytes{0}, allocated_bytes{-1},
      reserved_bytes{-1};
  PackedColumn thread{0};
  PackedColumn device_type{0}, device_index{-1};

  std::size_t bytes() const;
};

struct ChromeCounterRows {
  std::size_t rows = 0;
  PackedColumn time_ns{0};
  PackedColumn name{0}, process{0};
  PackedReals value{0};

  std::size_t bytes() const;
};

struct ChromeFlowRows {
  std::size_t rows = 0;
  PackedColumn time_ns{0}, id{0};
  PackedColumn thread{0}, name{0}, category{0};
  PackedColumn phase{0};

  std::size_t bytes() const;
};

// Counts of repaired or unreadable values, under the names that the reader reports.
struct ChromeLosses {
  int64_t truncated = 0, bad_events = 0, bad_header = 0, bad_times = 0, negative_durations = 0,
          missing_durations = 0;
  int64_t unmatched_ends = 0, unfinished_begins = 0, too_deep = 0, beyond_memory_limit = 0;
  int64_t bad_arguments = 0, oversized_values = 0, ignored_events = 0, text_after_end = 0,
          bad_memory_events = 0;
  int64_t bad_ids = 0, repeated_lists = 0, bad_texts = 0, implausible_durations = 0;
};

// Arguments of spans that have no column, as JSON objects. Usually few different ones repeat in many spans;
// but those with an id or an address are all different, and a hash table of them would be larger than they
// are. So only recent ones are looked up, and if hardly any of them repeated, the next ones are stored
// without lookup. An object that repeats after that gets a second row; if many do, as in steps with very many
// different operators, more are kept for lookup.
class ChromeArgumentTexts {
 public:
  explicit ChromeArgumentTexts(uint64_t seed) : seed_(seed), recent_(seed) {}

  // The row of the object with these members; `bad` says whether it is new and not valid JSON.
  int32_t add(std::string_view inside, bool* bad);
  // Called when all objects were added; they can be read from then on.
  void close();
  // Calls `look` with each object. One that is not valid JSON becomes an object with its text as the only
  // member.
  template <typename Look>
  void each_json(Look look) const {
    int32_t row = 0;
    packed_.each([&](std::string_view inside) { look(json_of(inside, row++)); });
  }
  std::size_t size() const { return packed_.size() + recent_.size() - found_again_.size(); }
  std::size_t bytes() const {
    return packed_.bytes() + recent_.bytes() + found_again_.capacity() * sizeof(int32_t) +
           repeated_.capacity() / 8 + seen_.size() * 4 * sizeof(uint64_t);
  }
  // Whether some belong to communication.
  bool collectives() const { return collectives_; }

 private:
  std::string json_of(std::string_view inside, int32_t row) const;
  // The row of one of the recent texts.
  int32_t row_of(std::size_t recent) const {
    if (recent < found_again_.size()) return found_again_[recent];
    return static_cast<int32_t>(packed_.size() + recent - found_again_.size());
  }
  void pack_recent();
  void look_whether_they_repeat();

  uint64_t seed_;
  PackedTexts packed_;  // of the first rows
  // Some with rows before those of the others, which are the last ones.
  TextTable recent_;
  std::vector<int32_t> found_again_;
  std::vector<bool> repeated_;  // of each of the recent ones: since some were packed
  // A sample of the hashes of all texts, and how many of it came again as new ones since some were packed.
  std::unordered_set<uint64_t> seen_;
  std::size_t came_again_ = 0;
  std::size_t look_at_ = kRecentTexts;
  bool collectives_ = false;
  std::vector<int32_t> bad_;  // ascending
};

// Converts one event after the other. Not thread-safe.
class ChromeEvents {
 public:
  ChromeEvents(std::vector<std::pair<std::string, ChromeCategory>> known, std::size_t max_bytes,
               uint64_t seed);

  // Whether times are nanoseconds, against the format; decided before the first event is taken.
  void read_nanoseconds() { in_nanoseconds_ = true; }
  // `event` and `arguments` point into the text of one event, and are only read during the call.
  void take(const ChromeEvent& event, Arguments& arguments);
  // Ends the spans that have no end event.
  void close();

  TextTable strings, categories, call_stacks;
  TextTable shape_texts, shape_rows;  // minified texts; "dims types concrete strides" by their rows
  ChromeArgumentTexts arguments;
  TextTable metadata;           // fields joined by kFieldEnd
  TextTable counter_processes;  // raw
  std::vector<ChromeThread> threads;
  std::vector<ChromeWindow> windows;
  ChromeSpanRows spans;
  ChromeKernelRows kernels;
  ChromeCopyRows copies;
  ChromeAllocationRows allocations;
  ChromeCounterRows counters;
  ChromeFlowRows flows;
  ChromeLosses losses;
  int64_t flows_implied = 0;
  bool has_python = false;
  std::vector<int32_t> implausible;  // the names of spans whose durations are

  std::size_t bytes() const;
  // More tracks than any real file has; a limit on memory.
  static constexpr std::size_t kMostNamedTracks = 1 << 16;
  static constexpr char kFieldEnd = '\x1f';

 private:
  struct Category {
    uint8_t kind;
    bool on_device, known, is_flow_of_launch;
  };
  // Spans with separate begin and end events, which define their nesting: those of a track, or of an
  // asynchronous operation.
  struct OpenSpans {
    std::vector<int32_t> rows;
    int64_t last_ns = -kLatestNs;  // of the last event
    bool has_unmatched_ends = false;
  };
  // The events in the order of the file, for tracks that turn out not to be in order of time. An end event
  // that found its span at once is stored as the span's number, because the span has its time and usually its
  // name already.
  struct Ends {
    static constexpr int64_t kNameOfSpan = -2;
    std::size_t rows = 0;
    PackedColumn owner{-1};
    PackedColumn span{-1};  // 2 * number of a span that begins, + 1 for its end; -1: another end
    PackedColumn name{kNameOfSpan}, time_ns{0};  // of an end
    std::size_t bytes() const { return owner.bytes() + span.bytes() + name.bytes() + time_ns.bytes(); }
  };

  bool full();
  int32_t text_row(TextTable& table, std::string_view raw);
  int16_t category_row(std::string_view raw);
  void check_id(std::string_view raw);
  int32_t thread_row(std::string_view process, std::string_view thread, bool on_device);
  bool time_of(std::string_view raw, int64_t& time_ns);
  int32_t shapes_row(Arguments& arguments);
  int32_t shape_part(std::string_view raw);
  int32_t arguments_row(Arguments& left);
  int32_t add_span(const ChromeEvent& event, Arguments& arguments, int64_t start_ns, int64_t duration_ns,
                   uint8_t flags);
  void add_device_facts(int32_t row, uint8_t kind, Arguments& arguments);
  void take_complete(const ChromeEvent& event, Arguments& arguments);
  void take_instant(const ChromeEvent& event, Arguments& arguments);
  void take_allocation(const ChromeEvent& event, Arguments& arguments, int64_t time_ns);
  void take_counter(const ChromeEvent& event, Arguments& arguments);
  void take_flow(const ChromeEvent& event);
  int32_t thread_of_flow(const ChromeEvent& event);
  void take_begin(const ChromeEvent& event, Arguments& arguments);
  void take_end(const ChromeEvent& event);
  void take_async(const ChromeEvent& event, Arguments& arguments);
  void take_metadata(const ChromeEvent& event, Arguments& arguments);
  int32_t track_of(const ChromeEvent& event);
  int32_t operation_of(const ChromeEvent& event);
  void begin_span(int32_t owner, int32_t span);
  void end_innermost(int32_t owner, std::string_view raw_name, int64_t end_ns, bool is_track);
  void clip_implausible();
  void end_span(int32_t span, int64_t end_ns);
  // The innermost of the `open` spans with the name of an end event, or of all if that has none; else the
  // end. The search is limited, so that no file can take hours.
  static constexpr std::ptrdiff_t kMostLookedThrough = 1024;
  std::vector<int32_t>::iterator innermost(std::vector<int32_t>& open, int32_t name) const;
  bool end_empty(std::vector<int32_t>& open, int32_t name, int64_t time_ns);
  void match_in_order_of_time();

  std::vector<std::pair<std::string, ChromeCategory>> known_;
  std::size_t max_bytes_;
  bool full_ = false;
  std::size_t until_looked_at_ = 0;
  std::vector<Category> category_;
  std::string last_category_text_;
  int16_t last_category_ = -1;
  TextTable raw_threads_, thread_keys_, raw_shapes_, ids_;
  // Facts that our own files have about tracks, by process and track: the track whose lane it is, and its
  // original number.
  std::map<std::pair<int64_t, int64_t>, int64_t> lane_of_, track_number_;
  std::vector<int32_t> thread_of_raw_, shape_text_of_raw_;
  std::string last_process_, last_thread_;
  bool last_on_device_ = false;
  int32_t last_thread_row_ = -1, last_host_thread_ = -1;
  bool in_nanoseconds_ = false;
  int64_t last_correlation_ = -1;
  int64_t first_ns_ = kLatestNs, latest_ns_ = 0;
  std::unordered_map<int32_t, OpenSpans> open_;  // by owner
  std::unordered_set<int32_t> disordered_;       // owners
  Ends ends_;
  std::size_t empty_objects_ = 0;
  std::string scratch_, scratch2_;
};

}  // namespace kinetoscope
