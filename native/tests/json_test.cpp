// Escaping, decoding and checking of random bytes, and blocks of Chrome events.
#include "core/json.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/chrome_writer.h"

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
  const std::vector<int64_t> start_ns(count, INT64_MIN), duration_ns(count, INT64_MIN),
      sequence(count, INT64_MAX);
  const std::vector<int32_t> zeros(count, 0);
  const std::vector<uint8_t> kind(count, 0), flags(count, 2);
  const std::vector<std::string> texts{std::string(300, '"')}, none{"[1,"}, categories{"cpu_op"};
  const std::vector<int32_t> parent{-1}, first_track{0};
  const std::vector<int64_t> tids{INT64_MIN};
  const ChromeSpans spans{start_ns, duration_ns, zeros, kind,  zeros, zeros,    sequence,
                          zeros,    zeros,       zeros, zeros, zeros, sequence, flags};
  const ChromeTables tables{texts, parent, first_track, first_track, first_track, first_track, texts, texts,
                            none,  none,   none,        categories,  tids,        first_track, tids};
  const auto write = [&](std::size_t block_bytes) {
    ChromeWriter writer(spans, {}, tables, INT64_MIN, INT64_MIN, "[", "]", block_bytes);
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
