#include "allocations.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "nesting.h"
#include "wrapping_sum.h"

namespace kinetoscope {
namespace {

// The row that last allocated each address, in open addressing. Freed addresses keep their slot: allocators
// hand the same ones out again and again.
class LiveBlocks {
 public:
  LiveBlocks() : slots_(1024) {}

  int32_t& row_of(uint64_t address) {
    if (2 * used_ >= slots_.size()) grow();
    Slot& slot = find(slots_, address);
    if (!slot.used) {
      slot = {address, -1, true};
      ++used_;
    }
    return slot.row;
  }

 private:
  struct Slot {
    uint64_t address = 0;
    int32_t row = -1;
    bool used = false;
  };

  static Slot& find(std::vector<Slot>& slots, uint64_t address) {
    const std::size_t mask = slots.size() - 1;
    // Addresses are multiples of their alignment: the product's upper half is what differs.
    std::size_t at = static_cast<std::size_t>((address * 0x9e3779b97f4a7c15u) >> 32) & mask;
    while (slots[at].used && slots[at].address != address) at = (at + 1) & mask;
    return slots[at];
  }

  void grow() {
    std::vector<Slot> bigger(2 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.used) find(bigger, slot.address) = slot;
    }
    slots_ = std::move(bigger);
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

// Walks one thread's spans along rising times and knows the innermost one.
class ThreadCursor {
 public:
  ThreadCursor() = default;
  ThreadCursor(const NestedSpans& spans, int32_t thread) {
    const auto [first, last] = std::equal_range(spans.thread.begin(), spans.thread.end(), thread);
    next_ = static_cast<std::size_t>(first - spans.thread.begin());
    end_ = static_cast<std::size_t>(last - spans.thread.begin());
  }

  int32_t innermost(const NestedSpans& spans, int64_t time_ns) {
    for (; next_ < end_ && spans.start_ns[next_] <= time_ns; ++next_) {
      if (spans.lane[next_] == 0) current_ = static_cast<int32_t>(next_);
    }
    while (current_ >= 0 && ended(spans, time_ns)) {
      const int32_t parent = spans.parent[static_cast<std::size_t>(current_)];
      current_ = parent < current_ ? parent : -1;
    }
    return current_ < 0 ? -1 : current_;
  }

 private:
  // One that ends at this very time is still open. Clocks advance in steps of 10 ns and more, and what an
  // operator allocates last is as late as its end; after its end the recorder itself needs some time.
  bool ended(const NestedSpans& spans, int64_t time_ns) const {
    const auto row = static_cast<std::size_t>(current_);
    const auto elapsed = static_cast<uint64_t>(time_ns) - static_cast<uint64_t>(spans.start_ns[row]);
    return elapsed > static_cast<uint64_t>(std::max<int64_t>(spans.duration_ns[row], 0));
  }

  std::size_t next_ = 0, end_ = 0;
  int32_t current_ = -1;
};

void check(const NestedSpans& spans, const AllocationEvents& events) {
  const std::size_t rows = spans.thread.size(), count = events.time_ns.size();
  if (spans.start_ns.size() != rows || spans.duration_ns.size() != rows || spans.parent.size() != rows ||
      spans.lane.size() != rows || events.thread.size() != count || events.address.size() != count ||
      events.bytes.size() != count || (!events.freed_bytes.empty() && events.freed_bytes.size() != count)) {
    throw BadColumns("attribute_allocations: the columns have different lengths");
  }
  if (!std::is_sorted(spans.thread.begin(), spans.thread.end())) {
    throw BadColumns("attribute_allocations: the spans are not sorted by thread");
  }
  if (!std::is_sorted(events.time_ns.begin(), events.time_ns.end())) {
    throw BadColumns("attribute_allocations: the events are not sorted by time");
  }
}

}  // namespace

AttributedAllocations attribute_allocations(const NestedSpans& spans, const AllocationEvents& events) {
  check(spans, events);
  const std::size_t rows = spans.thread.size(), count = events.time_ns.size();
  AttributedAllocations result{Column<int32_t>(count), Column<int32_t>(count, -1), Column<int64_t>(count),
                               Column<int64_t>(rows, 0), Column<int64_t>(rows, 0)};
  LiveBlocks live;
  std::unordered_map<int32_t, ThreadCursor> cursors;
  ThreadCursor* cursor = nullptr;
  int64_t total_bytes = 0;
  for (std::size_t event = 0; event < count; ++event) {
    if (event == 0 || events.thread[event] != events.thread[event - 1]) {
      const auto [at, added] = cursors.try_emplace(events.thread[event]);
      if (added) at->second = ThreadCursor(spans, events.thread[event]);
      cursor = &at->second;
    }
    int32_t& block = live.row_of(events.address[event]);
    int64_t change_bytes = 0, unknown_bytes = 0;
    if (events.bytes[event] != 0) {
      if (block >= 0) total_bytes = wrapping_sum(total_bytes, -events.bytes[static_cast<std::size_t>(block)]);
      block = static_cast<int32_t>(event);
      change_bytes = events.bytes[event];
    } else if (block >= 0) {
      change_bytes = -events.bytes[static_cast<std::size_t>(block)];
      result.match[event] = block;
      result.match[static_cast<std::size_t>(block)] = static_cast<int32_t>(event);
      block = -1;
    } else {
      ++result.unmatched_frees;
      if (!events.freed_bytes.empty()) unknown_bytes = events.freed_bytes[event];
    }
    total_bytes = wrapping_sum(total_bytes, change_bytes);
    result.total_bytes[event] = total_bytes;
    const int32_t span = cursor->innermost(spans, events.time_ns[event]);
    result.span[event] = span;
    if (span >= 0) {
      int64_t& own = result.span_self_bytes[static_cast<std::size_t>(span)];
      own = wrapping_difference(wrapping_sum(own, change_bytes), unknown_bytes);
    }
  }
  for (std::size_t row = rows; row-- > 0;) {
    int64_t& bytes = result.span_bytes[row];
    bytes = wrapping_sum(bytes, result.span_self_bytes[row]);
    const int32_t parent = spans.parent[row];
    if (parent >= 0 && static_cast<std::size_t>(parent) < row) {
      int64_t& above = result.span_bytes[static_cast<std::size_t>(parent)];
      above = wrapping_sum(above, bytes);
    }
  }
  return result;
}

}  // namespace kinetoscope
