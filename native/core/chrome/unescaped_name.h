// Names in which Kineto does not escape quotes, so that its text is not valid JSON.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

#include "json_scan.h"

namespace kinetoscope {

inline constexpr std::ptrdiff_t kLongestUnescapedName = 1 << 13;

// The quote that ends a name with unescaped quotes as Kineto writes names: the key of the process follows.
// nullptr if the next event comes first, and `end` if the text ends first.
inline const char* end_of_unescaped_name(const char* p, const char* end) {
  constexpr std::string_view kNext = "\"pid\"", kFirst = "\"ph\"", kAnother = "\"name\"";
  const char* const begin = p;
  for (; (p = static_cast<const char*>(std::memchr(p, '"', static_cast<std::size_t>(end - p)))) != nullptr;
       ++p) {
    const std::string_view rest(p, static_cast<std::size_t>(end - p));
    if (rest.starts_with(kFirst) || rest.starts_with(kAnother) || p - begin > kLongestUnescapedName)
      return nullptr;
    const char* next = skip_space(p + 1, end);
    if (next < end && *next == ',') next = skip_space(next + 1, end);
    if (next + kNext.size() > end) return end;
    if (std::string_view(next, kNext.size()) == kNext) return p;
  }
  return end;
}

}  // namespace kinetoscope
