// JSON as the recorder writes it into strings of the dictionary.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

namespace kinetoscope {

// Appends `text` in quotes; bytes from 0x20 on are taken as the UTF-8 that they are.
inline void append_json_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  out += '"';
}

// The shortest digits that read back as the same number.
inline std::string number_text(double number) {
  char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "%.17g", number);
  if (double shorter = 0; std::isfinite(number)) {
    for (int digits = 1; digits <= 17; ++digits) {
      std::snprintf(buffer, sizeof(buffer), "%.*g", digits, number);
      if (std::sscanf(buffer, "%lf", &shorter) == 1 && shorter == number) break;
    }
  }
  return buffer;
}

}  // namespace kinetoscope
