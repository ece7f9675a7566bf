#include "arguments.h"

#include <bit>
#include <cstring>
#include <utility>

#include "../columns/text_table.h"
#include "json_scan.h"
#include "json_values.h"

namespace kinetoscope {
namespace {

struct KnownKey {
  std::string_view text;
  Argument number;
};

// Keys as the releases of torch since 1.8 spell them.
constexpr KnownKey kKnown[] = {
    {"External id", Argument::ExternalId},
    {"external id", Argument::ExternalId},
    {"correlation", Argument::Correlation},
    {"Sequence number", Argument::SequenceNumber},
    {"Fwd thread id", Argument::ForwardThread},
    {"Input Dims", Argument::InputDims},
    {"Input dims", Argument::InputDims},
    {"Input type", Argument::InputTypes},
    {"Concrete Inputs", Argument::ConcreteInputs},
    {"Input Strides", Argument::InputStrides},
    {"Record function id", Argument::RecordFunction},
    {"Call stack", Argument::CallStack},
    {"Module Hierarchy", Argument::ModuleHierarchy},
    {"Ev Idx", Argument::EventIndex},
    {"Profiler Event Index", Argument::EventIndex},
    {"Trace name", Argument::TraceName},
    {"Trace iteration", Argument::TraceIteration},
    {"memory bandwidth (GB/s)", Argument::Bandwidth},
    {"Python id", Argument::PythonId},
    {"Python parent id", Argument::PythonParent},
    {"Python module id", Argument::PythonModule},
    {"queued", Argument::Queued},
    {"device", Argument::Device},
    {"context", Argument::Context},
    {"stream", Argument::Stream},
    {"grid", Argument::Grid},
    {"block", Argument::Block},
    {"registers per thread", Argument::Registers},
    {"shared memory", Argument::SharedMemory},
    {"blocks per SM", Argument::BlocksPerSm},
    {"warps per SM", Argument::WarpsPerSm},
    {"est. achieved occupancy %", Argument::Occupancy},
    {"bytes", Argument::Bytes},
    {"Bytes", Argument::MemoryBytes},
    {"Addr", Argument::Address},
    {"Device Type", Argument::DeviceType},
    {"Device Id", Argument::DeviceId},
    {"Total Allocated", Argument::TotalAllocated},
    {"Total Reserved", Argument::TotalReserved},
    {"graph id", Argument::Graph},
    {"graph node id", Argument::GraphNode},
    // Of the events that name tracks in our own files.
    {"Track number", Argument::TrackNumber},
    {"Lane of", Argument::LaneOf},
};

class KnownKeys {
 public:
  KnownKeys() {
    slots_.fill(0xFF);
    for (std::size_t row = 0; row < std::size(kKnown); ++row) {
      std::size_t at = place(kKnown[row].text);
      while (slots_[at] != 0xFF) at = (at + 1) % kSlots;
      slots_[at] = static_cast<uint8_t>(row);
    }
  }
  // The row of a key in the list above, or -1.
  int find(std::string_view text) const {
    for (std::size_t at = place(text); slots_[at] != 0xFF; at = (at + 1) % kSlots) {
      if (kKnown[slots_[at]].text == text) return slots_[at];
    }
    return -1;
  }

 private:
  static constexpr std::size_t kSlots = 256;
  static std::size_t place(std::string_view text) { return hash_text(text, 0) % kSlots; }
  std::array<uint8_t, kSlots> slots_;
};

const KnownKeys kKeys;

// Numbers that JSON cannot represent, which some writers write as texts.
bool is_strange_number(std::string_view raw) {
  if (raw.empty()) return false;
  const char first = raw[raw.front() == '-' && raw.size() > 1 ? 1 : 0];
  return first == 'N' || first == 'I' || first == 'i' || (first == 'n' && raw != "null");
}

void append_pair(std::string_view key, std::string_view raw, std::string& out) {
  if (!out.empty()) out += ',';
  out += '"';
  out += key;
  out += "\":";
  if (is_strange_number(raw)) {
    out += '"';
    out += raw;
    out += '"';
  } else {
    append_minified(raw, out);
  }
}

constexpr std::size_t kDeepest = 200;

}  // namespace

const char* Arguments::read(const char* p, const char* end, std::size_t& deepest) {
  clear();
  std::size_t previous = kArguments;
  const auto fail = [this](const char* at) {
    failed_at_ = at;
    return static_cast<const char*>(nullptr);
  };
  ++p;
  for (bool first = true;; first = false) {
    std::string_view text;
    std::size_t number = kArguments;
    if (const char* value = gap_[previous].passed(p, end)) {
      text = kKnown[gap_[previous].key()].text;
      number = static_cast<std::size_t>(kKnown[gap_[previous].key()].number);
      p = skip_space(value, end);
      if (p >= end) return fail(end);
    } else {
      const char* const gap = p;
      p = skip_space(p, end);
      if (p >= end) return fail(end);
      if (*p == '}') return p + 1;
      if (!first) {
        if (*p != ',') return fail(p);
        p = skip_space(p + 1, end);
        if (p >= end) return fail(end);
        if (*p == '}') return p + 1;  // an extra comma is accepted
      }
      if (*p != '"') return fail(p);
      bool escaped = false;
      const char* close = find_closing_quote(p + 1, end, escaped);
      if (close == nullptr) return fail(end);
      text = {p + 1, static_cast<std::size_t>(close - p - 1)};
      p = skip_space(close + 1, end);
      if (p >= end || *p != ':') return fail(p);
      p = skip_space(p + 1, end);
      if (p >= end) return fail(end);
      const int row = kKeys.find(text);
      if (row >= 0) {
        number = static_cast<std::size_t>(kKnown[row].number);
        gap_[previous].learn(gap, p, static_cast<std::size_t>(row));
      }
    }
    const char* const begin = p;
    std::size_t depth = 0;
    p = skip_value(p, end, depth);
    if (p == nullptr) {
      // Where quotes or brackets are open, more text may close them; a bare word is invalid.
      return fail(begin >= end || *begin == '"' || *begin == '{' || *begin == '[' ? end : begin);
    }
    std::string_view raw(begin, static_cast<std::size_t>(p - begin));
    if (depth > kDeepest) {
      if (depth > deepest) deepest = depth;
      raw = "null";
    }
    if (number < kArguments) {
      seen_ |= uint64_t{1} << number;
      raw_[number] = raw;
      key_[number] = text;
      previous = number;
    } else {
      append_pair(text, raw, unknown_);
      previous = kArguments + 1;
    }
  }
}

void Arguments::add(std::string_view key, std::string_view raw) {
  if (!raw.empty()) append_pair(key, raw, unknown_);
}

void Arguments::append_rest(std::string& out) const {
  for (uint64_t left = seen_; left != 0; left &= left - 1) {
    const std::size_t number = static_cast<std::size_t>(std::countr_zero(left));
    append_pair(key_[number], raw_[number], out);
  }
  if (!unknown_.empty()) {
    if (!out.empty()) out += ',';
    out += unknown_;
  }
}

}  // namespace kinetoscope
