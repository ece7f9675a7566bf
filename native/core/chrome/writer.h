// Writes the events of a Chrome trace (the "traceEvents" array that Perfetto and chrome://tracing read), in
// the form that Kineto writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../columns/column.h"
#include "writer_columns.h"
#include "writer_texts.h"

namespace kinetoscope {

// Yields the file block by block; a block ends between events. Columns must outlive the writer, tables and
// the header need not. The array is opened by the header and closed by the footer; the writer adds the
// commas.
class ChromeWriter {
 public:
  // Throws BadColumns where columns of one table differ in length or are not in order, and where a span's
  // thread, lane or kind has no track or category.
  ChromeWriter(const ChromeColumns& columns, const ChromeTables& tables, int64_t base_ns, std::string header,
               std::string footer, std::size_t block_bytes);

  // The next block, or nothing at the end. Valid until the next call.
  std::string_view next_block();
  // The block that next_block() returned last, for a caller that wants to keep it while the next one is made;
  // `spare` is written next.
  Column<char> exchange_block(Column<char> spare) { return std::exchange(block_, std::move(spare)); }

 private:
  enum class Part { Header, Spans, Allocations, Counters, Footer, Done };
  // A call of a Python function around the current span.
  struct OpenCall {
    int64_t end_ns;
    std::size_t row;
  };

  void check_lengths() const;
  void check_tracks(const ChromeTables& tables) const;
  void sort_flows();

  // Each writes as many whole events as fit; false if the block was full first.
  bool write_spans();
  bool write_slice();
  bool write_flows();
  bool write_allocations();
  bool write_counters();
  bool has_room(std::size_t bytes);

  void write_flow(std::size_t flow, bool arrives);
  void write_numbers(EventText& out);
  void write_call(EventText& out);
  void write_kernel(EventText& out);
  void write_copy(EventText& out);
  std::size_t track_of(int32_t thread, int32_t lane) const;
  std::string_view track_of_span(std::size_t row) const;
  // The position of the next event, after a comma if it needs one.
  EventText begin_event();
  void end_event(const EventText& out);

  ChromeColumns columns_;
  ChromeTexts texts_;
  std::vector<int32_t> first_track_;
  std::vector<uint8_t> traits_;
  std::vector<uint32_t> flows_by_source_, flows_by_target_;
  std::vector<std::string> counter_places_;  // by counter: an argument with its owner
  int64_t base_ns_;
  std::string header_, footer_;
  std::size_t block_bytes_;

  Part part_ = Part::Header;
  std::size_t row_ = 0;
  bool slice_written_ = false;
  // The next row of each of these tables that belongs to the current span or a later one.
  std::size_t kernel_ = 0, copy_ = 0, leaving_ = 0, arriving_ = 0;
  std::vector<OpenCall> calls_;
  bool comma_ = false;
  Column<char> block_;
  std::size_t used_ = 0;
};

// base_ns + time_ns, clamped to 64 bits.
int64_t chrome_time_ns(int64_t base_ns, int64_t time_ns);

}  // namespace kinetoscope
