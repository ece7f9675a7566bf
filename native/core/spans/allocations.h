// Attributes allocations and frees to spans.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"

namespace kinetoscope {

struct NestedSpans {
  std::span<const int32_t> thread;
  std::span<const int64_t> start_ns, duration_ns;
  std::span<const int32_t> parent, lane;
};

struct AllocationEvents {
  std::span<const int64_t> time_ns;
  std::span<const int32_t> thread;
  std::span<const uint64_t> address;
  std::span<const int64_t> bytes;        // 0: freed
  std::span<const int64_t> freed_bytes;  // of a free, if the source has it, else 0; or empty
};

struct AttributedAllocations {
  Column<int32_t> span;         // innermost span in lane 0 of the same thread with start <= time < end; -1
  Column<int32_t> match;        // allocation <-> its free; -1
  Column<int64_t> total_bytes;  // live and known, after the event
  Column<int64_t> span_self_bytes;  // by span: allocated minus freed while it was innermost
  Column<int64_t> span_bytes;       // by span: the same with all spans below
  // Frees of blocks whose allocation was not seen. For spans, the size in the source counts; for the total,
  // which never contained them, zero.
  int64_t unmatched_frees = 0;
};

// Spans are sorted by (thread, start) and nested by nest(); events are sorted by time. If an address is
// allocated again while its block is live, the free was missed: the old block leaves the total then. Throws
// BadColumns on unequal lengths or another order.
AttributedAllocations attribute_allocations(const NestedSpans& spans, const AllocationEvents& events);

}  // namespace kinetoscope
