// What a Perfetto trace shows of its events besides their names and times: debug annotations.
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

// One thing that is shown of events.
struct PerfettoFact {
  enum class Kind : uint8_t {
    Number,   // as it is; -1 and what is no number are not shown
    Always,   // as it is, whatever it is
    Pointer,  // in hexadecimal
    Flag,     // where it is not 0
    String,   // a string id; 0 is not shown
    Text,     // a row of `texts`
    Stack,    // a row of the stacks
    Object,   // a row of `texts`, each a JSON object whose members are shown, unless others of the name were
  };

  std::string name;
  Kind kind;
  PerfettoNumbers values;  // int32 where they are ids or rows; those that do not exist are not shown
  std::vector<std::string> texts = {};
};

// What is shown of the events of some rows, which ascend; without rows, of every row.
struct PerfettoFacts {
  std::span<const int32_t> rows;
  bool of_every_row = true;
  std::vector<PerfettoFact> facts;
};

// A packet in the making.
struct PerfettoDraft {
  ProtobufBuffer event;     // its TrackEvent
  ProtobufBuffer interned;  // what its InternedData holds
  uint32_t sequence = 1;

  void clear() {
    event.clear();
    interned.clear();
  }
  // Says once which text a number of this sequence stands for.
  void intern(uint32_t field, uint32_t number, std::string_view text);

 private:
  ProtobufBuffer entry_;
};

// Writes annotations. Columns must outlive it, texts need not.
class PerfettoAnnotations {
 public:
  // Strings are strict UTF-8, and they must outlive it too.
  PerfettoAnnotations(std::span<const std::string> strings, const PerfettoStacks& stacks);

  // Takes the facts of one kind of event, of which there are so many; returns the number of the kind.
  // Throws BadColumns.
  std::size_t take(std::vector<PerfettoFacts> facts, std::size_t events);

  void begin_sequence() { last_name_ = last_text_ = 0; }
  // Shows a row. Where facts are of some rows only, rows must be shown in ascending order.
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
    std::size_t next = 0;  // the first of `rows` that has not been shown
  };

  BoundFact bind(PerfettoFact fact);
  std::size_t name_row(std::string name);
  std::size_t add_texts(std::vector<std::string> texts, std::size_t rows);
  void show_fact(const BoundFact& fact, std::size_t at, PerfettoDraft& draft);
  void show_number(const BoundFact& fact, std::size_t at, PerfettoDraft& draft);
  void show_row(const BoundFact& fact, std::size_t row, PerfettoDraft& draft);
  void show_text(std::size_t name, std::size_t table, std::size_t row, PerfettoDraft& draft);
  // Between these stands the value of the annotation, in annotation_.
  void begin(std::size_t name, PerfettoDraft& draft);
  void end(PerfettoDraft& draft);

  std::span<const std::string> strings_;
  PerfettoStacks stacks_;
  std::vector<std::string> names_;
  InternedRows name_numbers_{0};
  // The strings and the stacks are the first two; their texts lie elsewhere or are made when they are needed.
  std::vector<TextTable> texts_;
  std::vector<ObjectMembers> objects_;
  std::vector<std::vector<BoundFacts>> kinds_;
  uint32_t last_name_ = 0, last_text_ = 0;
  std::vector<uint64_t> shown_in_;  // by name: the last event that shows one of it
  uint64_t event_ = 0;
  ProtobufBuffer annotation_;
};

}  // namespace kinetoscope
