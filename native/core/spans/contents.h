// Follows the contents of storages through operators: which call has the result of an earlier one.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"
#include "../recording/format.h"

namespace kinetoscope {

// What is known of a call, in `TensorCalls::flags`.
enum CallFlag : uint8_t {
  kCallIsTorchs = 1,
  kCallIsDetermined = 2,  // the same result each time, and no other effects
  kCallWrites = 4,
  kCallFills = 8,
  kCallOverwrites = 16,  // all of its first argument, whatever was there
  kCallHasStatistics = 32,
  kCallWritesUnknown = 64,  // also to what is not given as an argument that is known
};

// Calls in order of time.
struct TensorCalls {
  std::span<const int32_t> kind;      // equal for calls of the same operator with the same other arguments
  std::span<const int32_t> cycle;     // between two cycles anything may have happened
  std::span<const uint8_t> flags;     // of `CallFlag`
  std::span<const int64_t> first;     // the first tensor of each call, and at the end the number of tensors
  std::span<const int32_t> argument;  // of each tensor: its place among the arguments or the results
  std::span<const int64_t> storage;   // 0 for none or an unknown one
  std::span<const int64_t> version;
  std::span<const int64_t> offset;
  std::span<const uint8_t> tensor_flags;  // of `TensorFlag`, as in a recording
  std::span<const uint64_t> content;      // equal for tensors with the same values, 0 for unknown ones
};

struct RepeatedCalls {
  Column<int64_t> before;          // of each call: the last one before with the same result, -1 for none
  Column<int64_t> overwritten_by;  // of each call that fills: the call that overwrote all of it unread, or -1
};

// Value numbering: contents are numbered, and calls of one kind on the same contents have the same result.
// What is not certain has a number that nothing else has. Throws BadColumns on unequal lengths or a bad
// `first`.
RepeatedCalls find_repeats(const TensorCalls& calls);

}  // namespace kinetoscope
