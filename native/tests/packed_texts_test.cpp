// Packed texts, on random ones and on those that are hard to pack, against a plain list of them.
#include "core/columns/packed_texts.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace kinetoscope {
namespace {

using Texts = std::vector<std::string>;

PackedTexts packed_of(const Texts& texts) {
  PackedTexts packed;
  for (const std::string& text : texts) packed.append(text);
  return packed;
}

bool same(const PackedTexts& packed, const Texts& texts) {
  Texts found;
  packed.each([&found](std::string_view text) { found.emplace_back(text); });
  return found == texts && packed.size() == texts.size();
}

std::size_t bytes_of(const Texts& texts) {
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

void no_texts_and_empty_ones() {
  CHECK(same(PackedTexts(), {}));
  CHECK(same(packed_of({""}), {""}));
  CHECK(same(packed_of(Texts(3 * kTextBlockBytes)), Texts(3 * kTextBlockBytes)));
}

void texts_of_every_length() {
  std::mt19937_64 random(1);
  // The lengths at which a length takes one more byte are among these.
  for (const unsigned letters : {1u, 2u, 256u}) {
    Texts texts;
    for (std::size_t length = 0; length < 1200; ++length) {
      std::string& text = texts.emplace_back(length, '\0');
      for (char& byte : text) byte = static_cast<char>(random() % letters);
    }
    CHECK(same(packed_of(texts), texts));
  }
}

void pieces_that_repeat_anywhere() {
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    Texts pieces, texts;
    for (int piece = 0; piece < 30; ++piece) {
      std::string& text = pieces.emplace_back(random() % 60, '\0');
      for (char& byte : text) byte = static_cast<char>(random());
    }
    for (int row = 0; row < 3000; ++row) {
      std::string& text = texts.emplace_back();
      for (uint64_t count = random() % 6; count > 0; --count) text += pieces[random() % pieces.size()];
    }
    CHECK(same(packed_of(texts), texts));
  }
}

void texts_larger_than_a_block() {
  std::mt19937_64 random(3);
  std::string noise(5 * kTextBlockBytes + 3, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  // What repeats stands further away than a copy reaches.
  const Texts texts{"a", noise, noise + noise, std::string(9 * kTextBlockBytes, 'x'), "", noise, "b"};
  CHECK(same(packed_of(texts), texts));
}

void what_hardly_differs_takes_little_memory() {
  Texts texts;
  for (int row = 0; row < 200'000; ++row) texts.push_back("\"id\":\"request-" + std::to_string(row) + "\"");
  const PackedTexts packed = packed_of(texts);
  CHECK(same(packed, texts));
  CHECK(packed.bytes() < bytes_of(texts) / 3);
}

void what_cannot_be_packed_takes_hardly_more_than_it_is_long() {
  std::mt19937_64 random(4);
  Texts texts(20'000, std::string(50, '\0'));
  for (std::string& text : texts) {
    for (char& byte : text) byte = static_cast<char>(random());
  }
  const PackedTexts packed = packed_of(texts);
  CHECK(same(packed, texts));
  CHECK(packed.bytes() < bytes_of(texts) * 11 / 10);
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::no_texts_and_empty_ones();
  kinetoscope::texts_of_every_length();
  kinetoscope::pieces_that_repeat_anywhere();
  kinetoscope::texts_larger_than_a_block();
  kinetoscope::what_hardly_differs_takes_little_memory();
  kinetoscope::what_cannot_be_packed_takes_hardly_more_than_it_is_long();
  return kinetoscope::testing::checks_failed();
}
