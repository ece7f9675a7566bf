// The arguments of a trace event: known keys by number, all others as text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "learned_gap.h"

namespace kinetoscope {

enum class Argument : uint8_t {
  ExternalId,
  Correlation,
  SequenceNumber,
  ForwardThread,
  InputDims,
  InputTypes,
  ConcreteInputs,
  InputStrides,
  RecordFunction,
  CallStack,
  ModuleHierarchy,
  EventIndex,
  TraceName,
  TraceIteration,
  Bandwidth,
  PythonId,
  PythonParent,
  PythonModule,
  Queued,
  Device,
  Context,
  Stream,
  Grid,
  Block,
  Registers,
  SharedMemory,
  BlocksPerSm,
  WarpsPerSm,
  Occupancy,
  Bytes,
  MemoryBytes,
  Address,
  DeviceType,
  DeviceId,
  TotalAllocated,
  TotalReserved,
  Graph,
  GraphNode,
  TrackNumber,
  LaneOf,
  Count,
};
inline constexpr std::size_t kArguments = static_cast<std::size_t>(Argument::Count);

constexpr uint64_t mask_of(Argument which) { return uint64_t{1} << static_cast<unsigned>(which); }

// The arguments of one event as raw text. take() removes a known argument; rest() returns the others.
class Arguments {
 public:
  void clear() {
    seen_ = 0;
    unknown_.clear();
  }
  // Parses the object at `p` (which points behind its bracket); returns the position behind it, or nullptr
  // with failed_at() set.
  const char* read(const char* p, const char* end, std::size_t& deepest);
  const char* failed_at() const { return failed_at_; }

  bool has(Argument which) const { return (seen_ >> static_cast<unsigned>(which) & 1) != 0; }
  bool has_any(uint64_t mask) const { return (seen_ & mask) != 0; }
  // The raw text of a value, empty without; take() also leaves it out of the rest.
  std::string_view peek(Argument which) const {
    return has(which) ? raw_[static_cast<std::size_t>(which)] : std::string_view();
  }
  std::string_view take(Argument which) {
    const std::string_view raw = peek(which);
    drop(mask_of(which));
    return raw;
  }
  void drop(uint64_t mask) { seen_ &= ~mask; }
  bool nothing_left() const { return seen_ == 0 && unknown_.empty(); }
  // Adds one that the event has beside its arguments; nothing if that is empty.
  void add(std::string_view key, std::string_view raw);
  // Appends the arguments that were not taken as members of an object: "key":value,"key":value.
  void append_rest(std::string& out) const;

 private:
  uint64_t seen_ = 0;
  std::array<std::string_view, kArguments> raw_, key_;
  std::string unknown_;
  const char* failed_at_ = nullptr;
  // Predicted from the argument before: a known one, none, or another.
  std::array<LearnedGap, kArguments + 2> gap_;
};

}  // namespace kinetoscope
