// Escaping, decoding and checking of random bytes, and blocks of Chrome events.
#include "core/chrome/json.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/chrome/writer.h"

namespace kinetoscope {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  append_json_escaped(text, out);
  return out;
}

void any_bytes_become_json() {
  std::mt19937 random(6);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text(random() % 12, '\0');
    for (char& byte : text) byte = static_cast<char>(random() % 3 == 0 ? random() : 0xe0 + random() % 0x20);
    CHECK(is_json('"' + escaped(text) + '"'));
    static_cast<void>(is_json(text));
    std::size_t read = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const DecodedCharacter character = decode_character(rest);
      CHECK(character.bytes >= 1 && character.bytes <= rest.size());
      rest.remove_prefix(character.bytes);
      ++read;
    }
    CHECK(decode_text(text).size() == read);
  }
}

void known_texts() {
  CHECK(escaped("a\"\\\n\x01") == "a\\\"\\\\\\n\\u0001");
  CHECK(escaped("\xed\xa0\x80") == "\\ud800");
  CHECK(escaped("\xf0\x9f\x98\x80") == "\xf0\x9f\x98\x80");
  CHECK(escaped("\xff") == "\xef\xbf\xbd");
  CHECK(decode_text("\xe2\x82") == U"\xfffd");
  CHECK(is_json("{\"a\":[1,{},[]],\"b\":-1.5e+3}"));
  CHECK(!is_json("{\"a\":1,}") && !is_json("[1 2]") && !is_json("") && !is_json("{\"a\":1") &&
        !is_json("[\"\xff\"]"));
  CHECK(!is_json(std::string(100000, '[')));
}

void blocks_of_every_size_hold_the_same_bytes() {
  const std::size_t count = 50;
  const std::vector<int64_t> least(count, INT64_MIN), most(count, INT64_MAX);
  const std::vector<int32_t> zeros(count, 0);
  const std::vector<uint8_t> kind(count, 0), flags(count, 7);
  const std::vector<double> halves(count, 0.5);
  std::vector<int32_t> rows(count);
  for (std::size_t row = 0; row < count; ++row) rows[row] = static_cast<int32_t>(row);
  const std::vector<std::string> texts{std::string(300, '"')}, none{"[1,"}, categories{"cpu_op"},
      arguments{"{\"bytes\": [1, \"}\"], \"x\": {}}"};
  const std::vector<int32_t> parent{-1}, first_track{0};
  const std::vector<int64_t> numbers{INT64_MIN};
  const std::vector<uint8_t> traits{kChromeCall | kChromeModule};
  ChromeColumns columns;
  columns.spans = {.start_ns = least,
                   .duration_ns = least,
                   .name = zeros,
                   .kind = kind,
                   .thread = zeros,
                   .lane = zeros,
                   .sequence = most,
                   .forward_thread = zeros,
                   .stack = zeros,
                   .module = zeros,
                   .shapes = zeros,
                   .flags = flags,
                   .record_function = most,
                   .event_index = most,
                   .external_id = most,
                   .correlation = most,
                   .call_number = most,
                   .stream = zeros,
                   .arguments = zeros,
                   .category = zeros};
  columns.kernels = {rows, rows,   rows,   rows,   rows, rows, rows, rows,
                     most, halves, halves, halves, most, most, most};
  columns.copies = {rows, most, most, most, most};
  columns.flows = {rows, zeros, most, kind};
  const std::vector<uint64_t> addresses(count, UINT64_MAX);
  const std::vector<int8_t> indices(count, -1);
  columns.allocations = {least, zeros, addresses, least, least, least, flags, indices};
  columns.counters = {least, zeros, halves};
  const ChromeTables tables{.strings = texts,
                            .stack_parent = parent,
                            .stack_frame = first_track,
                            .frame_function = first_track,
                            .frame_file = first_track,
                            .frame_line = first_track,
                            .module_path = texts,
                            .module_class = texts,
                            .module_number = numbers,
                            .shape_dims = none,
                            .shape_types = none,
                            .shape_concrete = none,
                            .shape_strides = {},
                            .arguments = arguments,
                            .categories = categories,
                            .device_categories = texts,
                            .traits = traits,
                            .flow_categories = texts,
                            .counter_name = texts,
                            .counter_pid = numbers,
                            .thread_torch_tid = numbers,
                            .thread_first_track = first_track,
                            .track_pid = numbers,
                            .track_tid = numbers,
                            .stream_device = numbers,
                            .stream_number = numbers};
  const auto write = [&](std::size_t block_bytes) {
    ChromeWriter writer(columns, tables, INT64_MIN, "[", "]", block_bytes);
    std::string all;
    for (std::string_view block = writer.next_block(); !block.empty(); block = writer.next_block())
      all += block;
    return all;
  };
  const std::string whole = write(1 << 20);
  CHECK(is_json(whole));
  for (const std::size_t block_bytes : {0, 1, 100, 1000, 5000}) CHECK(write(block_bytes) == whole);
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::any_bytes_become_json();
  kinetoscope::known_texts();
  kinetoscope::blocks_of_every_size_hold_the_same_bytes();
  return kinetoscope::testing::checks_failed();
}
