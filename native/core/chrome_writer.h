// Writes the events of a Chrome trace (the "traceEvents" array that Perfetto and chrome://tracing read).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "column.h"

namespace kinetoscope {

// Texts that JSON has already been made of, one after the other in one block.
class EscapedTexts {
 public:
  std::string& writing() { return block_; }
  // Ends the text that was appended to writing() since the last end().
  void end() { ends_.push_back(block_.size()); }
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t at) const {
    const std::size_t first = at == 0 ? 0 : ends_[at - 1];
    return std::string_view(block_).substr(first, ends_[at] - first);
  }
  // The text of a row, or nothing for a row that does not exist.
  std::string_view of(int32_t row) const {
    return static_cast<std::size_t>(row) < ends_.size() ? (*this)[static_cast<std::size_t>(row)]
                                                        : std::string_view("");
  }

 private:
  std::string block_;
  std::vector<std::size_t> ends_;
};

struct ChromeSpans {
  std::span<const int64_t> start_ns, duration_ns;
  std::span<const int32_t> name;  // string id
  std::span<const uint8_t> kind;  // index of a category
  std::span<const int32_t> thread, lane;
  std::span<const int64_t> sequence;                 // -1: none
  std::span<const int32_t> forward, forward_thread;  // rows of spans, of threads
  std::span<const int32_t> stack, module, shapes;    // rows
  std::span<const int64_t> record_function;          // -1: none; may be empty
  std::span<const uint8_t> flags;                    // SpanState
};

struct ChromeAllocations {
  std::span<const int64_t> time_ns;
  std::span<const int32_t> thread;
  std::span<const uint64_t> address;
  std::span<const int64_t> bytes;  // negative: freed
  std::span<const int64_t> total_bytes;
  std::span<const uint8_t> device_type;
  std::span<const int8_t> device_index;
};

// Texts are UTF-8 with lone surrogates in their three-byte form.
struct ChromeTables {
  std::span<const std::string> strings;
  std::span<const int32_t> stack_parent, stack_frame;
  std::span<const int32_t> frame_function, frame_file, frame_line;
  std::span<const std::string> module_path, module_class;
  std::span<const std::string> shape_dims, shape_types, shape_concrete;  // JSON; what is not is left out
  std::span<const std::string> categories;                               // by kind
  std::span<const int64_t> thread_torch_tid;                             // by thread
  std::span<const int32_t> thread_first_track;  // by thread: its lane 0 among the tracks
  std::span<const int64_t> track_tid;           // by track
};

// Yields the file block by block; a block ends between events. Columns must outlive the writer, tables and
// the header need not. The array is opened by the header and closed by the footer; the writer adds the
// commas.
class ChromeWriter {
 public:
  ChromeWriter(const ChromeSpans& spans, const ChromeAllocations& allocations, const ChromeTables& tables,
               int64_t pid, int64_t base_ns, std::string header, std::string footer, std::size_t block_bytes);

  // The next block, or nothing at the end. Valid until the next call.
  std::string_view next_block();
  // The block that next_block() returned last, for a caller that wants to keep it while the next one is made;
  // `spare` is written next.
  Column<char> exchange_block(Column<char> spare) { return std::exchange(block_, std::move(spare)); }

 private:
  enum class Part { Header, Spans, Allocations, Footer, Done };

  void escape_names(const ChromeTables& tables);
  void escape_stacks(const ChromeTables& tables);
  void escape_modules(const ChromeTables& tables);
  void escape_shapes(const ChromeTables& tables);
  void check_tracks(std::size_t categories) const;

  // Each writes as many whole events as fit; false when the block is full first.
  bool write_spans();
  bool write_allocations();
  bool has_room(std::size_t bytes);
  std::size_t track_of(int32_t thread, int32_t lane) const;

  ChromeSpans spans_;
  ChromeAllocations allocations_;
  EscapedTexts openings_, names_, stacks_, modules_, module_classes_, shapes_, track_tids_, torch_tids_;
  std::vector<int32_t> first_track_;
  std::string pid_;
  int64_t base_ns_;
  std::string header_, footer_;
  std::size_t block_bytes_;

  Part part_ = Part::Header;
  std::size_t row_ = 0;
  uint64_t flows_ = 0;
  bool comma_ = false;
  Column<char> block_;
  std::size_t used_ = 0;
};

}  // namespace kinetoscope
