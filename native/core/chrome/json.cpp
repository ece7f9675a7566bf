#include "json.h"

#include <array>
#include <vector>

namespace kinetoscope {
namespace {

constexpr uint32_t kReplacement = 0xfffd;
// Common parsers recurse and give up somewhere around a thousand levels.
constexpr std::size_t kMostDepth = 200;
constexpr char kHex[] = "0123456789abcdef";

bool is_surrogate(uint32_t code_point) { return code_point >= 0xd800 && code_point <= 0xdfff; }

constexpr char kSpaces[] = " \t\r\n";

// The position of the string's closing quote; its inside begins at `at`; the text is JSON.
std::size_t end_of_string(std::string_view json, std::size_t at) {
  for (; json[at] != '"'; ++at) at += json[at] == '\\';
  return at;
}

// Bytes that stand for themselves inside a JSON string.
constexpr std::array<bool, 256> plain_bytes() {
  std::array<bool, 256> plain = {};
  for (std::size_t byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}
constexpr std::array<bool, 256> kPlain = plain_bytes();

void append_unicode_escape(uint32_t unit, std::string& out) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 0xf];
}

void append_control_or_quote(char byte, std::string& out) {
  switch (byte) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      append_unicode_escape(static_cast<unsigned char>(byte), out);
  }
}

// A parser of RFC 8259 that only validates.
class JsonChecker {
 public:
  explicit JsonChecker(std::string_view text) : text_(text) {}

  bool check() {
    skip_space();
    while (true) {
      if (!value_or_opening()) return false;
      // A value has ended: close what can be closed, then expect a comma or the end.
      while (true) {
        skip_space();
        if (open_.empty()) return at_ == text_.size();
        if (!take(open_.back())) break;
        open_.pop_back();
      }
      if (!take(',')) return false;
      skip_space();
      if (open_.back() == '}' && !key()) return false;
    }
  }

 private:
  // Reads openings of arrays and objects down to the first whole value, which may be an empty one.
  bool value_or_opening() {
    while (true) {
      skip_space();
      if (at_ == text_.size()) return false;
      const char next = text_[at_];
      if (next != '{' && next != '[') return scalar();
      if (open_.size() == kMostDepth) return false;
      ++at_;
      skip_space();
      const char closing = next == '{' ? '}' : ']';
      if (take(closing)) return true;
      open_.push_back(closing);
      if (next == '{' && !key()) return false;
    }
  }

  bool key() {
    if (!string()) return false;
    skip_space();
    return take(':');
  }

  bool scalar() {
    switch (text_[at_]) {
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

  bool string() {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (kPlain[byte]) {
        ++at_;
      } else if (byte == '"') {
        ++at_;
        return true;
      } else if (byte == '\\') {
        if (!escape()) return false;
      } else {
        if (byte < 0x20) return false;
        const DecodedCharacter character = decode_character(text_.substr(at_));
        if (!character.valid || is_surrogate(character.code_point)) return false;
        at_ += character.bytes;
      }
    }
    return false;
  }

  bool escape() {
    ++at_;
    if (at_ == text_.size()) return false;
    const char kind = text_[at_++];
    if (kind != 'u') return std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos;
    for (int digit = 0; digit < 4; ++digit, ++at_) {
      if (at_ == text_.size() || !is_hex(text_[at_])) return false;
    }
    return true;
  }

  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      return digits();
    }
    return true;
  }

  bool digits() {
    const std::size_t first = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > first;
  }

  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  static bool is_hex(char byte) {
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
  }

  bool take(char expected) {
    if (at_ == text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<char> open_;  // the closing bracket of each open array and object
};

}  // namespace

DecodedCharacter decode_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  std::size_t length = 0;
  uint32_t code_point = 0;
  // The second byte's range keeps overlong forms and code points above U+10FFFF out.
  unsigned char least = 0x80, most = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
    code_point = lead & 0x1f;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    code_point = lead & 0x0f;
    if (lead == 0xe0) least = 0xa0;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    code_point = lead & 0x07;
    if (lead == 0xf0) least = 0x90;
    if (lead == 0xf4) most = 0x8f;
  } else {
    return {kReplacement, 1, false};
  }
  for (std::size_t at = 1; at < length; ++at) {
    if (at == text.size() || byte(at) < least || byte(at) > most) return {kReplacement, at, false};
    code_point = (code_point << 6) | (byte(at) & 0x3f);
    least = 0x80;
    most = 0xbf;
  }
  return {code_point, length, true};
}

void append_utf8(uint32_t code_point, std::string& out) {
  const auto continuation = [&](int shift) {
    out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3f));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xc0 | code_point >> 6);
    continuation(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xe0 | code_point >> 12);
    continuation(6);
    continuation(0);
  } else {
    out += static_cast<char>(0xf0 | code_point >> 18);
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

std::u32string decode_text(std::string_view text) {
  std::u32string decoded;
  while (!text.empty()) {
    const DecodedCharacter character = decode_character(text);
    decoded += static_cast<char32_t>(character.code_point);
    text.remove_prefix(character.bytes);
  }
  return decoded;
}

void append_json_escaped(std::string_view text, std::string& out) {
  while (!text.empty()) {
    std::size_t plain = 0;
    while (plain < text.size() && kPlain[static_cast<unsigned char>(text[plain])]) ++plain;
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) return;
    const DecodedCharacter character = decode_character(text);
    if (character.bytes == 1 && character.valid) {
      append_control_or_quote(text[0], out);
    } else if (!character.valid) {
      out += "\xef\xbf\xbd";
    } else if (is_surrogate(character.code_point)) {
      append_unicode_escape(character.code_point, out);
    } else {
      out.append(text.substr(0, character.bytes));
    }
    text.remove_prefix(character.bytes);
  }
}

bool has_damage(std::string_view text) {
  while (!text.empty()) {
    const DecodedCharacter character = decode_character(text);
    if (!character.valid || character.code_point < 0x20) return true;
    text.remove_prefix(character.bytes);
  }
  return false;
}

bool is_json(std::string_view text) { return JsonChecker(text).check(); }

bool split_json_object(std::string_view json, std::vector<JsonMember>& members) {
  std::size_t at = json.find_first_not_of(kSpaces);
  if (at == std::string_view::npos || json[at] != '{') return false;
  ++at;
  while (true) {
    at = json.find_first_of("\"}", at);
    if (json[at] == '}') return true;
    const std::size_t key = at + 1;
    at = end_of_string(json, key);
    const std::string_view name = json.substr(key, at - key);
    at = json.find_first_not_of(kSpaces, json.find(':', at) + 1);
    const std::size_t value = at;
    for (int depth = 0; depth > 0 || (json[at] != ',' && json[at] != '}'); ++at) {
      if (json[at] == '"') at = end_of_string(json, at + 1);
      depth += json[at] == '{' || json[at] == '[';
      depth -= json[at] == '}' || json[at] == ']';
    }
    const std::size_t last = json.find_last_not_of(kSpaces, at - 1);
    members.push_back({name, json.substr(value, last + 1 - value)});
  }
}

}  // namespace kinetoscope
