// Writes text as JSON, and checks whether text is JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kinetoscope {

// One character of mostly valid UTF-8: lone surrogates in their three-byte form are characters, too; every
// other invalid sequence reads as one U+FFFD for each longest valid prefix of a character.
struct DecodedCharacter {
  uint32_t code_point;
  std::size_t bytes;
  bool valid;  // false for the U+FFFD of broken bytes; surrogates are valid
};

// The first character of `text`, which is not empty.
DecodedCharacter decode_character(std::string_view text);

// Appends a character; a surrogate in its three-byte form.
void append_utf8(uint32_t code_point, std::string& out);

// The whole text as code points.
std::u32string decode_text(std::string_view text);

// Appends the inside of a JSON string (no quotes around it) that a strict parser reads as decode_text(text).
void append_json_escaped(std::string_view text, std::string& out);

// Whether there is a raw control character or broken UTF-8 in the text, which no JSON string may contain.
bool has_damage(std::string_view text);

// Whether `text` is exactly one JSON value (RFC 8259) in valid UTF-8, nested at most 200 deep.
bool is_json(std::string_view text);

// A member of an object as raw text: the inside of its key's string, and its value.
struct JsonMember {
  std::string_view key, value;
};

// Appends the members of the object `json` in order; `json` must be valid JSON, see is_json(). False if it is
// not an object.
bool split_json_object(std::string_view json, std::vector<JsonMember>& members);

}  // namespace kinetoscope
