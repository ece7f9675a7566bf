// Writes a Perfetto trace: the packets of https://perfetto.dev/docs/reference/trace-packet-proto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annotations.h"
#include "protobuf_buffer.h"
#include "texts.h"
#include "tracks.h"

namespace kinetoscope {

// Sorted by thread, then start, the longer one first. Those of one lane of a thread nest.
struct PerfettoSpans {
  std::span<const int64_t> start_ns, duration_ns;
  std::span<const int32_t> name, category;  // string id, row of categories
  std::span<const int32_t> thread, lane;    // rows
  std::span<const uint8_t> instant;         // 1: an instant if it has no duration; may be empty
  std::span<const int32_t> location;        // row of frames, -1 without; may be empty
};

// Instants on threads, sorted by time, all of one name.
struct PerfettoMoments {
  std::string name, category;
  std::span<const int64_t> time_ns;
  std::span<const int32_t> thread;
};

// The samples of one counter, sorted by time.
struct PerfettoCounter {
  int32_t track;
  std::span<const int64_t> time_ns;
  std::variant<std::span<const int64_t>, std::span<const double>> values;
};

// Arrows from the start of one span to that of another.
struct PerfettoArrows {
  std::span<const int32_t> source, target;  // rows of spans; invalid ones have no arrow
};

struct PerfettoColumns {
  PerfettoSpans spans;
  std::vector<PerfettoFacts> span_facts;
  PerfettoMoments moments;
  std::vector<PerfettoFact> moment_facts;
  std::vector<PerfettoCounter> counters;
  std::vector<PerfettoArrows> arrows;
};

// Arguments that need not outlive the constructor. Texts are UTF-8; invalid sequences are replaced.
struct PerfettoTables {
  std::vector<std::string> strings, categories;
  PerfettoStacks stacks;  // but its columns must
  std::vector<PerfettoTrack> tracks;
  std::span<const int32_t> thread_first_track;  // by thread: its lane 0 among the tracks
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Yields the file block by block; a block ends between packets. Columns must outlive the writer.
//
// Every thread and every counter is a sequence of packets of its own: with its own numbers for texts, and
// with a clock that counts from packet to packet. So times ascend within a sequence, and whoever reads the
// file sorts the sequences among each other.
class PerfettoWriter {
 public:
  // `realtime_ns` is the wall-clock time at time 0, 0 if unknown. Throws BadColumns, as next_block() does.
  PerfettoWriter(PerfettoColumns columns, PerfettoTables tables, int64_t realtime_ns, uint64_t identity,
                 std::size_t block_bytes);
  PerfettoWriter(const PerfettoWriter&) = delete;
  PerfettoWriter& operator=(const PerfettoWriter&) = delete;

  // The next block, or nothing at the end. Valid until the next call.
  std::string_view next_block();
  // The block that next_block() returned last, for a caller that wants to keep it while the next one is made;
  // `spare` is written next.
  ProtobufBuffer exchange_block(ProtobufBuffer spare) { return std::exchange(block_, std::move(spare)); }

 private:
  struct Arrow {
    uint32_t row;  // of the span at this end of it
    uint32_t number : 31;
    uint32_t ends : 1;  // whether the other end certainly comes first
  };
  struct OpenSpan {
    int64_t end_ns;
    std::size_t track;
  };

  void check_spans() const;
  void check_moments() const;
  void check_counters() const;
  void take_moments();
  void take_arrows(std::span<const PerfettoArrows> arrows);
  void set_origin();

  // These write until the block is full, and return whether everything was written.
  bool write_threads();
  bool write_thread(std::size_t thread);
  bool write_counters();
  // Writes the ends of spans up to and including `until_ns`, and the instants before it; everything without a
  // limit.
  bool catch_up(std::optional<int64_t> until_ns);

  void begin_sequence(std::size_t track);
  void write_span(std::size_t row);
  void write_moment(std::size_t row);
  void write_end(const OpenSpan& span);
  void write_sample(const PerfettoCounter& counter, std::size_t sample);
  void write_packet(int64_t time_ns);
  void name_event(std::size_t name, std::string_view text, std::size_t category,
                  std::string_view category_text, uint64_t type);
  void place_event(std::size_t track);
  void locate_event(int32_t frame);
  void add_arrows(std::size_t row);
  void open_span(std::size_t row, std::size_t track);

  bool has_track(int32_t thread, int32_t lane) const;
  std::size_t track_of(int32_t thread, int32_t lane) const;
  std::string_view string_of(int32_t id) const;
  uint64_t clock(int64_t time_ns) const;
  bool full() const { return block_.size() >= block_bytes_; }

  PerfettoColumns columns_;
  std::vector<std::string> strings_, categories_;
  PerfettoStacks stacks_;
  std::vector<int32_t> first_track_;
  std::size_t tracks_;
  uint64_t identity_;
  std::size_t block_bytes_;
  int64_t origin_ns_ = 0;  // the time that becomes 0 in the file

  PerfettoAnnotations annotations_;
  std::size_t facts_of_spans_, facts_of_moments_;
  InternedRows event_names_, event_categories_, locations_;
  std::vector<Arrow> arrows_;              // by row
  std::vector<uint32_t> moments_;          // rows, by thread, then time
  std::vector<std::size_t> first_moment_;  // by thread, and the end

  ProtobufBuffer block_, header_, packet_;
  PerfettoDraft draft_;
  std::size_t row_ = 0, moment_ = 0, arrow_ = 0;
  std::size_t thread_ = 0, counter_ = 0, sample_ = 0;
  bool in_sequence_ = false;
  std::size_t default_track_ = 0;
  uint64_t last_clock_ = 0;
  uint32_t last_name_ = 0, last_category_ = 0, last_location_ = 0;
  std::vector<int64_t> open_;         // the ends of the open spans of lane 0, outermost first
  std::vector<OpenSpan> open_lanes_;  // those of other lanes: a heap, the earliest end on top
  std::vector<int64_t> lane_ends_;    // by lane
};

}  // namespace kinetoscope
