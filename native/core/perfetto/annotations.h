// Debug annotations: the arguments of events in a Perfetto trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protobuf_buffer.h"
#include "texts.h"

namespace kinetoscope {

using PerfettoNumbers =
    std::variant<std::span<const int8_t>, std::span<const uint8_t>, std::span<const int32_t>,
                 std::span<const int64_t>, std::span<const uint64_t>, std::span<const double>>;

// One argument of events.
struct PerfettoFact {
  enum class Kind : uint8_t {
    Number,   // unchanged; -1 and NaN are not shown
    Always,   // unchanged, whatever the value
    Pointer,  // in hexadecimal
    Flag,     // if it is not 0
    String,   // a string id; 0 is not shown
    Text,     // a row of `texts`
    Stack,    // a row of the stacks
    Object,   // a row of `texts`, each a JSON object whose members are shown, except names that were shown
              // already
  };

  std::string name;
  Kind kind;
  PerfettoNumbers values;  // int32 for ids and rows; invalid ones are not shown
  std::vector<std::string> texts = {};
};

// The arguments of the events of some rows, which ascend; without rows, of every row.
struct PerfettoFacts {
  std::span<const int32_t> rows;
  bool of_every_row = true;
  std::vector<PerfettoFact> facts;
};

// A packet that is being written.
struct PerfettoDraft {
  ProtobufBuffer event;     // its TrackEvent
  ProtobufBuffer interned;  // its InternedData
  uint32_t sequence = 1;

  void clear() {
    event.clear();
    interned.clear();
  }
  // Writes once which text a number of this sequence stands for.
  void intern(uint32_t field, uint32_t number, std::string_view text);

 private:
  ProtobufBuffer entry_;
};

// Writes annotations. Columns must outlive it, texts need not.
class PerfettoAnnotations {
 public:
  // Strings are strict UTF-8, and they must outlive it too.
  PerfettoAnnotations(std::span<const std::string> strings, const PerfettoStacks& stacks);

  // Adds the arguments of one kind of events, and their number of rows; returns the number of the kind.
  // Throws BadColumns.
  std::size_t take(std::vector<PerfettoFacts> facts, std::size_t events);

  void begin_sequence() { last_name_ = last_text_ = 0; }
  // Writes the arguments of a row. If some arguments exist for some rows only, rows must be passed in
  // ascending order.
  void show(std::size_t kind, std::size_t row, PerfettoDraft& draft);

 private:
  struct TextTable {
    std::vector<std::string> texts;
    InternedRows numbers;
  };
  struct BoundFact {
    PerfettoFact::Kind kind;
    std::size_t name;
    PerfettoNumbers values;
    std::size_t texts = 0;    // of what is text
    std::size_t objects = 0;  // of objects
  };
  struct BoundFacts {
    std::span<const int32_t> rows;
    bool of_every_row;
    std::vector<BoundFact> facts;
    std::size_t next = 0;  // the first of `rows` that was not written yet
  };

  BoundFact bind(PerfettoFact fact);
  std::size_t name_row(std::string name);
  std::size_t add_texts(std::vector<std::string> texts, std::size_t rows);
  void show_fact(const BoundFact& fact, std::size_t at, PerfettoDraft& draft);
  void show_number(const BoundFact& fact, std::size_t at, PerfettoDraft& draft);
  void show_row(const BoundFact& fact, std::size_t row, PerfettoDraft& draft);
  void show_text(std::size_t name, std::size_t table, std::size_t row, PerfettoDraft& draft);
  // The value of the annotation is between these, in annotation_.
  void begin(std::size_t name, PerfettoDraft& draft);
  void end(PerfettoDraft& draft);

  std::span<const std::string> strings_;
  PerfettoStacks stacks_;
  std::vector<std::string> names_;
  InternedRows name_numbers_{0};
  // The strings and the stacks are the first two; their texts are stored elsewhere, or made on demand.
  std::vector<TextTable> texts_;
  std::vector<ObjectMembers> objects_;
  std::vector<std::vector<BoundFacts>> kinds_;
  uint32_t last_name_ = 0, last_text_ = 0;
  std::vector<uint64_t> shown_in_;  // by name: the last event that has an argument of this name
  uint64_t event_ = 0;
  ProtobufBuffer annotation_;
};

}  // namespace kinetoscope
