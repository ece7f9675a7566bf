// Any bytes at all to the reader of Chrome traces: it must not crash, must keep what it promises of its
// columns, and must find the same however the text was cut into blocks.
//
// Built twice. As one of the native tests it has a driver of its own, which mutates the texts in
// native/tests/corpus a fixed number of times from a fixed seed. `make fuzz` builds it with clang's
// libFuzzer, which brings its own driver and looks for texts that take new ways through the reader, for as
// long as one likes.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/chrome/limits.h"
#include "core/chrome/order.h"
#include "core/chrome/reader.h"

namespace kinetoscope {
namespace {

void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

std::vector<std::pair<std::string, ChromeCategory>> categories() {
  return {{"cpu_op", {0, false}},       {"user_annotation", {2, false}}, {"python_function", {4, false}},
          {"kernel", {6, true}},        {"gpu_memcpy", {7, true}},       {"gpu_memset", {8, true}},
          {"cuda_runtime", {9, false}}, {"cuda_sync", {11, true}},       {"gpu_user_annotation", {2, true}}};
}

// Everything that was read, as one text; also checks what columns promise.
class Digest {
 public:
  explicit Digest(ChromeReader& reader) : taken_(reader.taken()) {
    number(static_cast<int64_t>(reader.events()));
    for (const auto& [key, value] : reader.header()) text(key), text(value);
    for (const TextTable* table :
         {&taken_.strings, &taken_.categories, &taken_.call_stacks, &taken_.shape_texts, &taken_.metadata}) {
      number(static_cast<int64_t>(table->size()));
      for (const std::string_view one : table->texts()) text(one);
    }
    taken_.arguments.each_json([this](const std::string& json) { text(json); });
    spans();
    facts();
    allocations();
    for (std::size_t row = 0; row < taken_.counters.rows; ++row) {
      number(taken_.counters.time_ns[row]);
      names(taken_.counters.name[row]);
      number(static_cast<int64_t>(taken_.counters.value[row] > 0));
    }
    flows();
    for (const ChromeWindow& window : taken_.windows) text(window.name), number(window.start_ns);
    losses();
  }
  const std::string& made() const { return made_; }

 private:
  void number(int64_t value) { (made_ += std::to_string(value)) += ' '; }
  void text(std::string_view value) { (made_ += value) += '\n'; }
  void names(int32_t row) {
    must(row >= 0 && static_cast<std::size_t>(row) < taken_.strings.size(), "a name is a string");
    number(row);
  }

  int64_t first_ns() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (std::size_t row = 0; row < taken_.spans.rows; ++row)
      first = std::min(first, taken_.spans.start_ns[row]);
    for (std::size_t row = 0; row < taken_.allocations.rows; ++row)
      first = std::min(first, taken_.allocations.time_ns[row]);
    for (std::size_t row = 0; row < taken_.counters.rows; ++row)
      first = std::min(first, taken_.counters.time_ns[row]);
    for (std::size_t row = 0; row < taken_.flows.rows; ++row)
      first = std::min(first, taken_.flows.time_ns[row]);
    for (const ChromeWindow& window : taken_.windows) first = std::min(first, window.start_ns);
    return first;
  }

  void spans() {
    const ChromeOrder order = order_spans(taken_);
    must(order.rows() == taken_.spans.rows, "every span has a place");
    must(order.thread_rows.size() == taken_.threads.size(), "every thread has a place");
    const int64_t base_ns = first_ns();
    const std::size_t rows = taken_.spans.rows;
    Column<int32_t> thread(rows), name(rows);
    Column<int64_t> start_ns(rows), duration_ns(rows);
    Column<uint8_t> kind(rows);
    for (std::size_t place = 0; place < rows; ++place) {
      const std::size_t row = static_cast<std::size_t>(order.order[place]);
      must(row < rows, "a place is a row");
      const std::size_t taken_thread = static_cast<std::size_t>(taken_.spans.thread[row]);
      must(taken_thread < taken_.threads.size(), "a span's thread is there");
      thread[place] = order.thread_rows[taken_thread];
      int64_t since_ns = 0, end_ns = 0;
      must(!__builtin_sub_overflow(taken_.spans.start_ns[row], base_ns, &since_ns), "times fit");
      start_ns[place] = since_ns;
      duration_ns[place] = taken_.spans.duration_ns[row];
      must(duration_ns[place] >= 0, "no span ends before it begins");
      must(!__builtin_add_overflow(start_ns[place], duration_ns[place], &end_ns), "ends fit");
      name[place] = taken_.spans.name[row];
      kind[place] = taken_.spans.kind[row];
      if (place > 0 && thread[place] == thread[place - 1]) {
        must(start_ns[place] >= start_ns[place - 1], "spans of a thread are in order of time");
      } else if (place > 0) {
        must(thread[place] > thread[place - 1], "spans are in order of threads");
      }
      number(thread[place]), number(start_ns[place]), number(duration_ns[place]), names(name[place]);
      number(taken_.spans.category[row]), number(kind[place]), number(taken_.spans.flags[row]);
      number(taken_.spans.correlation[row]), number(taken_.spans.external_id[row]);
      number(taken_.spans.sequence[row]), number(taken_.spans.forward_number[row]);
      number(taken_.spans.record_function[row]), number(taken_.spans.event_index[row]),
          number(taken_.spans.shapes[row]);
      number(taken_.spans.call_stack[row]), number(taken_.spans.device_index[row]);
      const int32_t arguments = taken_.spans.arguments[row];
      must(arguments < static_cast<int32_t>(taken_.arguments.size()), "arguments are there");
      number(arguments);
    }
    const ChromeStacks stacks = stack_spans(taken_.spans, order);
    for (std::size_t row = 0; row < stacks.stack_parent.size(); ++row) {
      must(stacks.stack_parent[row] < static_cast<int32_t>(row), "parents come first");
      names(stacks.stack_name[row]);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      must(stacks.own_stack[row] < static_cast<int32_t>(stacks.stack_parent.size()), "stacks are there");
      must(stacks.own_module[row] < static_cast<int32_t>(stacks.module_name.size()), "modules are there");
      number(stacks.own_stack[row]), number(stacks.own_module[row]);
    }
  }

  void facts() {
    for (std::size_t row = 0; row < taken_.kernels.rows; ++row) {
      must(static_cast<std::size_t>(taken_.kernels.span[row]) < taken_.spans.rows, "a kernel is a span");
      number(taken_.kernels.span[row]), number(taken_.kernels.grid_x[row]);
      number(taken_.kernels.block_z[row]), number(taken_.kernels.shared_bytes[row]);
    }
    for (std::size_t row = 0; row < taken_.copies.rows; ++row) {
      must(static_cast<std::size_t>(taken_.copies.span[row]) < taken_.spans.rows, "a copy is a span");
      number(taken_.copies.span[row]), number(taken_.copies.bytes_moved[row]);
    }
  }

  void allocations() {
    for (std::size_t row = 0; row < taken_.allocations.rows; ++row) {
      must(taken_.allocations.bytes_taken[row] >= 0 && taken_.allocations.freed_bytes[row] >= 0,
           "sizes are not negative");
      number(taken_.allocations.time_ns[row]), number(taken_.allocations.address[row]);
      number(taken_.allocations.bytes_taken[row]), number(taken_.allocations.freed_bytes[row]);
      number(taken_.allocations.thread[row]), number(taken_.allocations.device_index[row]);
    }
  }

  void flows() {
    number(taken_.flows_implied);
    for (std::size_t row = 0; row < taken_.flows.rows; ++row) {
      number(taken_.flows.time_ns[row]), number(taken_.flows.id[row]), number(taken_.flows.phase[row]);
      names(taken_.flows.name[row]), names(taken_.flows.category[row]), number(taken_.flows.thread[row]);
    }
  }

  void losses() {
    const ChromeLosses& lost = taken_.losses;
    for (const int64_t count :
         {lost.truncated, lost.bad_events, lost.bad_header, lost.bad_times, lost.bad_arguments,
          lost.bad_memory_events, lost.negative_durations, lost.missing_durations, lost.unmatched_ends,
          lost.unfinished_begins, lost.too_deep, lost.oversized_values, lost.ignored_events,
          lost.text_after_end, lost.beyond_memory_limit}) {
      must(count >= 0, "losses are counts");
      number(count);
    }
  }

  ChromeEvents& taken_;
  std::string made_;
};

// What comes of the text in blocks of so many bytes (0: all at once), each in memory of its own, so that a
// look beyond its end is seen.
std::string read(std::string_view whole, std::size_t block_bytes, std::size_t max_bytes, uint64_t seed) {
  try {
    ChromeReader reader(categories(), max_bytes, seed);
    for (std::size_t at = 0; at < whole.size();) {
      const std::size_t bytes = block_bytes == 0 ? whole.size() : std::min(block_bytes, whole.size() - at);
      const std::vector<char> block(whole.begin() + static_cast<std::ptrdiff_t>(at),
                                    whole.begin() + static_cast<std::ptrdiff_t>(at + bytes));
      reader.feed({block.data(), block.size()});
      at += bytes;
    }
    reader.finish();
    return Digest(reader).made();
  } catch (const NotATrace&) {
    return "not a trace";
  }
}

void try_one(std::string_view data) {
  if (data.empty()) return;
  // The last byte chooses the size of the blocks, so that texts of the corpus stay readable from their
  // beginning.
  const std::size_t block_bytes = 1 + static_cast<uint8_t>(data.back()) % 64u;
  const std::string at_once = read(data, 0, 0, 1);
  const std::string in_blocks = read(data, block_bytes, 0, 2);
  // A value too long to be kept is one only while its end was not seen.
  if (data.size() <= kLargestValue) must(in_blocks == at_once, "blocks make no difference");
  read(data, block_bytes, 1, 3);
}

}  // namespace
}  // namespace kinetoscope

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  kinetoscope::try_one({reinterpret_cast<const char*>(data), size});
  return 0;
}

#ifndef KINETOSCOPE_LIBFUZZER

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace {

constexpr int kRounds = 400;
constexpr std::size_t kLongest = 8192;

std::vector<std::string> corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

// One to four changes: a bit, a piece gone, doubled or taken from another text, a piece that means something.
std::string mutated(std::string text, const std::vector<std::string>& texts, std::mt19937& random) {
  static const std::vector<std::string> pieces = {"\"",
                                                  "\\",
                                                  "{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "null",
                                                  "-",
                                                  "1e308",
                                                  "-1",
                                                  "9223372036854775807",
                                                  "NaN",
                                                  "Infinity",
                                                  "\\ud800",
                                                  "\\u0000",
                                                  "\xff",
                                                  "\xed\xa0\x80",
                                                  "\"ph\":\"X\",",
                                                  "\"ph\":\"B\",",
                                                  "\"ph\":\"E\",",
                                                  "\"ph\":\"b\",",
                                                  "\"ph\":\"e\",",
                                                  "\"ts\":-9e15,",
                                                  "\"ts\":9e15,",
                                                  "\"dur\":1e300,",
                                                  "\"args\":{",
                                                  "\"traceEvents\":[",
                                                  "[memory]",
                                                  "},{\"ph\":"};
  const auto below = [&random](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t bytes = std::min<std::size_t>(below(40), text.size() - at);
    switch (random() % 6) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
        break;
      case 1:
        text.erase(at, bytes);
        break;
      case 2:
        text.insert(at, text.substr(at, bytes));
        break;
      case 3: {
        const std::string& other = texts[below(texts.size())];
        text.insert(at, other.substr(below(other.size()), below(200)));
        break;
      }
      case 4:
        text.insert(at, pieces[below(pieces.size())]);
        break;
      default:
        text.resize(at);
        break;
    }
  }
  if (text.size() > kLongest) text.resize(kLongest);
  return text;
}

}  // namespace

// Texts from the folder named on the command line, or else from the corpus; a number of rounds may follow.
int main(int count, char** words) {
  const std::vector<std::string> texts = corpus(count > 1 ? words[1] : KINETOSCOPE_CORPUS);
  const int rounds = count > 2 ? std::atoi(words[2]) : kRounds;
  if (texts.empty()) return 1;
  std::mt19937 random(20);
  for (const std::string& text : texts) {
    for (std::size_t length = 0; length <= text.size(); length += 1 + length / 64) {
      kinetoscope::try_one(std::string_view(text).substr(0, length));
    }
    for (int round = 0; round < rounds; ++round) {
      const std::string tried = mutated(text, texts, random);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(tried.data()), tried.size());
    }
  }
  return 0;
}

#endif
