// The texts of a Chrome trace's events as JSON, converted once for each row of their tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "event_text.h"
#include "writer_columns.h"

namespace kinetoscope {

// Texts that were converted to JSON, one after the other in one block.
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
  // The text of a row, or an empty text for a row that does not exist.
  std::string_view of(int32_t row) const {
    return static_cast<std::size_t>(row) < ends_.size() ? (*this)[static_cast<std::size_t>(row)]
                                                        : std::string_view("");
  }

 private:
  std::string block_;
  std::vector<std::size_t> ends_;
};

// Further arguments from the source, ready to be appended to those of an event: `,"key":value` each. A key
// that the event already has, from a column, is left out: the column's value counts, and no key occurs twice.
class SourceArguments {
 public:
  // Texts that are not JSON objects are empty; of a key that occurs twice in one, the last value counts.
  void add(std::string_view json);
  // The largest number of bytes that append() needs.
  std::size_t bytes_of(int32_t row) const { return texts_.of(row).size(); }
  // `written` is the text of the event's arguments so far.
  void append(int32_t row, std::string_view written, EventText& out) const;

 private:
  struct Part {
    std::size_t end;  // in the row's text
    bool may_repeat;  // it has a key that columns write, too
  };

  EscapedTexts texts_;
  std::vector<std::size_t> ends_;  // of each row's parts; a row without keys that may repeat has none
  std::vector<Part> parts_;
};

// Names, stacks, modules and shapes of all rows that spans refer to; others stay empty.
struct ChromeTexts {
  // Throws BadColumns where columns of one table have different lengths.
  ChromeTexts(const ChromeSpans& spans, const ChromeTables& tables);

  EscapedTexts names;  // by string id: names and categories
  EscapedTexts stacks, modules, module_classes, shapes;
  EscapedTexts module_ordinals;  // the number of each module within its class
  SourceArguments arguments;
  EscapedTexts categories, device_categories;  // by kind
  EscapedTexts flow_categories;
  EscapedTexts counter_openings;
  EscapedTexts tracks;      // `"pid":1,"tid":2` by track
  EscapedTexts torch_tids;  // by thread; empty if torch gave none
  EscapedTexts streams;     // `,"device":0,"stream":7` by row of streams

 private:
  void escape_names(const ChromeSpans& spans, const ChromeTables& tables);
  void escape_stacks(const ChromeSpans& spans, const ChromeTables& tables);
  void escape_modules(const ChromeTables& tables);
  void escape_shapes(const ChromeTables& tables);
  void escape_tracks(const ChromeTables& tables);
  void escape_counters(const ChromeTables& tables);
};

}  // namespace kinetoscope
