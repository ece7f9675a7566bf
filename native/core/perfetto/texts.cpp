#include "texts.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "../chrome/json.h"
#include "../chrome/json_values.h"

namespace kinetoscope {
namespace {

// As in a Chrome trace: without a limit, the texts of a deep recursion would be quadratic in its depth.
constexpr std::size_t kMostFrames = 256;
constexpr uint32_t kReplacement = 0xfffd;

std::string_view string_of(std::span<const std::string> strings, int32_t id) {
  return static_cast<std::size_t>(id) < strings.size()
             ? std::string_view(strings[static_cast<std::size_t>(id)])
             : std::string_view{};
}

}  // namespace

std::string strict_utf8(std::string_view text) {
  std::string strict;
  strict.reserve(text.size());
  while (!text.empty()) {
    const auto beyond_ascii =
        std::find_if(text.begin(), text.end(), [](char byte) { return static_cast<signed char>(byte) < 0; });
    const auto plain = static_cast<std::size_t>(beyond_ascii - text.begin());
    strict.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    DecodedCharacter character = decode_character(text);
    std::size_t bytes = character.bytes;
    if ((character.code_point & ~0x3ffu) == 0xd800 && text.size() > bytes) {
      const DecodedCharacter low = decode_character(text.substr(bytes));
      if ((low.code_point & ~0x3ffu) == 0xdc00) {
        character.code_point = 0x10000 + ((character.code_point - 0xd800) << 10) + (low.code_point - 0xdc00);
        bytes += low.bytes;
      }
    }
    const bool surrogate = character.code_point >= 0xd800 && character.code_point < 0xe000;
    append_utf8(surrogate ? kReplacement : character.code_point, strict);
    text.remove_prefix(bytes);
  }
  return strict;
}

std::string stack_text(const PerfettoStacks& stacks, std::span<const std::string> strings, int32_t stack) {
  std::string text;
  for (std::size_t depth = 0; stack >= 0; ++depth) {
    if (depth > 0) text += ';';
    if (depth == kMostFrames) return text + "...";
    const auto row = static_cast<std::size_t>(stack);
    const auto frame = static_cast<std::size_t>(stacks.frame[row]);
    if (frame < stacks.file.size()) {
      text += string_of(strings, stacks.file[frame]);
      text += '(' + std::to_string(stacks.line[frame]) + "): ";
      text += string_of(strings, stacks.function[frame]);
    }
    stack = stacks.parent[row] < stack ? stacks.parent[row] : -1;
  }
  return text;
}

ObjectMembers::ObjectMembers(std::span<const std::string> objects, uint32_t otherwise,
                             std::vector<std::string>& names) {
  std::unordered_map<std::string, uint32_t> name_rows;
  for (const std::string& name : names) name_rows.try_emplace(name, name_rows.size());
  std::vector<JsonMember> found;
  for (const std::string& object : objects) {
    found.clear();
    if (!is_json(object) || !split_json_object(object, found)) {
      if (!object.empty()) members_.push_back({otherwise, Type::Text, text_row(strict_utf8(object))});
    }
    for (const JsonMember& one : found) {
      std::string key;
      append_unescaped(one.key, key);
      const auto [name, fresh] = name_rows.try_emplace(strict_utf8(key), names.size());
      if (fresh) names.push_back(name->first);
      members_.push_back(member(one.value, name->second));
    }
    first_.push_back(members_.size());
  }
}

ObjectMembers::Member ObjectMembers::member(std::string_view value, uint32_t name) {
  const char* const end = value.data() + value.size();
  const auto is = [&](auto& number) {
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    return stop == end && error == std::errc();
  };
  int64_t integer = 0;
  uint64_t large = 0;
  double real = 0;
  if (value.front() == '"') {
    std::string text;
    append_unescaped(value.substr(1, value.size() - 2), text);
    return {name, Type::Text, text_row(strict_utf8(text))};
  }
  if (value == "true" || value == "false") return {name, Type::Boolean, value == "true"};
  if (is(integer)) return {name, Type::Integer, static_cast<uint64_t>(integer)};
  if (is(large)) return {name, Type::Unsigned, large};
  if (is(real)) return {name, Type::Real, std::bit_cast<uint64_t>(real)};
  // Arrays, objects, null, and numbers that do not fit stay texts.
  return {name, Type::Text, text_row(strict_utf8(value))};
}

uint64_t ObjectMembers::text_row(std::string text) {
  const auto [entry, fresh] = text_rows_.try_emplace(std::move(text), texts_.size());
  if (fresh) texts_.push_back(entry->first);
  return entry->second;
}

}  // namespace kinetoscope
