// The texts of a Perfetto trace: written once for each sequence of packets, and referred to by number from
// then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kinetoscope {

// Strict UTF-8: pairs of surrogates become their character; lone ones, and bytes that are no UTF-8, U+FFFD.
std::string strict_utf8(std::string_view text);

// Which rows of a table have a number in the current sequence. Numbers count from 1, in the order of first
// use.
class InternedRows {
 public:
  explicit InternedRows(std::size_t rows) : entries_(rows) {}

  struct Number {
    uint32_t number;
    bool fresh;
  };
  // `last` is the last number that was assigned in the sequence, by this table or others.
  Number number(std::size_t row, uint32_t sequence, uint32_t& last) {
    Entry& entry = entries_[row];
    if (entry.sequence == sequence) return {entry.number, false};
    entry = {sequence, ++last};
    return {last, true};
  }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint32_t sequence = 0;  // no sequence has the number 0
    uint32_t number = 0;
  };

  std::vector<Entry> entries_;
};

struct PerfettoStacks {
  std::span<const int32_t> parent, frame;         // by stack; a parent's row is below its child's
  std::span<const int32_t> function, file, line;  // by frame; the first two are string ids
};

// `file(line): function` of every frame of a stack, innermost first, joined by `;`, at most 256 of them.
// Strings are UTF-8.
std::string stack_text(const PerfettoStacks& stacks, std::span<const std::string> strings, int32_t stack);

// The members of many JSON objects; each name and each text is stored once.
class ObjectMembers {
 public:
  enum class Type : uint8_t { Text, Integer, Unsigned, Real, Boolean };
  struct Member {
    uint32_t name;  // row of the names given
    Type type;
    uint64_t bits;  // of the number, or the row of texts()
  };

  // Adds the names of members to `names`. A text that is not an object has one member with the name
  // `otherwise`.
  ObjectMembers(std::span<const std::string> objects, uint32_t otherwise, std::vector<std::string>& names);

  std::size_t size() const { return first_.size() - 1; }
  std::span<const Member> of(std::size_t object) const {
    return std::span(members_).subspan(first_[object], first_[object + 1] - first_[object]);
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  Member member(std::string_view value, uint32_t name);
  uint64_t text_row(std::string text);

  std::vector<std::size_t> first_{0};
  std::vector<Member> members_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint64_t> text_rows_;
};

}  // namespace kinetoscope
