// Which users' ranges of a shared recording belong to other sessions than a given one: the marks of their
// steps, and garbage collections that only they record.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dictionary.h"
#include "format.h"

namespace kinetoscope {

class RangesOfOthers {
 public:
  RangesOfOthers(const RecordingDictionary& dictionary, uint32_t session);

  bool has(const SpanRecord& record) const {
    if (record.scope != kUserScope) return false;
    const bool mark = step_marks_ && record.parameter != 0 && record.sequence >= 0 && is_step(record.name);
    return mark ? record.parameter != session_ + 1 : leaves_collections_ && is_collection(record.name);
  }

  // Whether it is a mark of the session itself.
  bool is_own_mark(const SpanRecord& record) const {
    return step_marks_ && record.scope == kUserScope && record.parameter == session_ + 1 &&
           record.sequence >= 0 && is_step(record.name);
  }

 private:
  bool is_step(uint32_t name) const { return std::binary_search(steps_.begin(), steps_.end(), name); }
  bool is_collection(uint32_t name) const {
    return std::binary_search(collections_.begin(), collections_.end(), name);
  }

  const uint32_t session_;
  // Ids of names.
  std::vector<uint32_t> steps_, collections_;
  bool step_marks_ = false, leaves_collections_ = false;
};

// A span stores how its stack differs from that of the previous span of its thread, see kKeptMask. If spans
// are removed, the next one must store the difference for all of them.
class KeptCalls {
 public:
  void begin_thread() { left_out_ = kKeptMask; }
  void leave_out(const SpanRecord& record) {
    if (const uint16_t kept = record.forward_thread & kKeptMask; kept != 0)
      left_out_ = std::min(left_out_, kept);
  }
  // What a span that is no backward function has in SpanRecord::forward_thread then.
  uint16_t take(uint16_t kept) {
    if (left_out_ == kKeptMask || kept == 0) return kept;
    if (left_out_ < (kept & kKeptMask)) kept = left_out_;
    left_out_ = kKeptMask;
    return kept;
  }

 private:
  uint16_t left_out_ = kKeptMask;
};

}  // namespace kinetoscope
