#include "json_values.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "json.h"
#include "json_scan.h"

namespace kinetoscope {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The code unit of the escape \uXXXX that starts at `at`, or -1.
int32_t code_unit(std::string_view text, std::size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return -1;
  int32_t unit = 0;
  for (std::size_t place = at + 2; place < at + 6; ++place) {
    const int digit = hex_digit(text[place]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string_view inside_quotes(std::string_view raw) {
  if (raw.size() >= 2 && raw.front() == '"' && raw.back() == '"') return raw.substr(1, raw.size() - 2);
  return raw;
}

void append_unescaped(std::string_view inside, std::string& out) {
  std::size_t at = 0;
  while (at < inside.size()) {
    const std::size_t slash = inside.find('\\', at);
    out.append(inside.substr(at, slash - at));
    if (slash == std::string_view::npos) return;
    at = slash;
    if (at + 1 >= inside.size()) {
      out += '\\';
      return;
    }
    const char kind = inside[at + 1];
    if (kind == 'u') {
      const int32_t unit = code_unit(inside, at);
      if (unit < 0) {
        out += "\\u";
        at += 2;
        continue;
      }
      at += 6;
      const int32_t low = unit >= 0xD800 && unit < 0xDC00 ? code_unit(inside, at) : -1;
      if (low >= 0xDC00 && low < 0xE000) {
        append_utf8(
            0x10000u + (static_cast<uint32_t>(unit - 0xD800) << 10) + static_cast<uint32_t>(low - 0xDC00),
            out);
        at += 6;
      } else {
        append_utf8(static_cast<uint32_t>(unit), out);
      }
      continue;
    }
    switch (kind) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case '"':
      case '\\':
      case '/':
        out += kind;
        break;
      default:
        out += '\\';
        out += kind;
        break;
    }
    at += 2;
  }
}

std::optional<int64_t> integer_of(std::string_view raw) {
  raw = inside_quotes(raw);
  if (raw.empty()) return std::nullopt;
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(raw.data(), raw.data() + raw.size(), value);
  if (error == std::errc() && stop == raw.data() + raw.size()) return value;
  const std::optional<double> real = real_of(raw);
  if (!real || !(*real >= -9.2e18 && *real <= 9.2e18) || *real != std::floor(*real)) return std::nullopt;
  return static_cast<int64_t>(*real);
}

std::optional<double> real_of(std::string_view raw) {
  raw = inside_quotes(raw);
  double value = 0;
  const auto [stop, error] = std::from_chars(raw.data(), raw.data() + raw.size(), value);
  if (error != std::errc() || stop != raw.data() + raw.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<uint64_t> address_of(std::string_view raw) {
  raw = inside_quotes(raw);
  uint64_t value = 0;
  const auto [stop, error] = std::from_chars(raw.data(), raw.data() + raw.size(), value);
  if (error == std::errc() && stop == raw.data() + raw.size()) return value;
  const std::optional<int64_t> negative = integer_of(raw);
  if (!negative) return std::nullopt;
  return static_cast<uint64_t>(*negative);
}

std::optional<int64_t> nanoseconds_of(std::string_view raw) {
  raw = inside_quotes(raw);
  const char* p = raw.data();
  const char* const end = p + raw.size();
  const bool negative = p < end && *p == '-';
  if (negative) ++p;
  uint64_t whole = 0;
  const char* const digits = p;
  while (p < end && is_digit(*p) && p - digits < 17) whole = whole * 10 + static_cast<uint64_t>(*p++ - '0');
  uint64_t nanoseconds = 0;
  bool plain = p != digits;
  if (p < end && *p == '.' && plain) {
    ++p;
    uint64_t fraction = 0;
    int places = 0;
    for (; p < end && is_digit(*p); ++p, ++places) {
      if (places < 3) fraction = fraction * 10 + static_cast<uint64_t>(*p - '0');
      if (places == 3 && *p >= '5') ++fraction;
    }
    for (; places < 3; ++places) fraction *= 10;
    nanoseconds = fraction;
  }
  if (plain && p == end && !__builtin_mul_overflow(whole, uint64_t{1000}, &whole) &&
      !__builtin_add_overflow(whole, nanoseconds, &nanoseconds) &&
      nanoseconds <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return negative ? -static_cast<int64_t>(nanoseconds) : static_cast<int64_t>(nanoseconds);
  }
  // With an exponent, or something else.
  const std::optional<double> real = real_of(raw);
  if (!real || !(std::fabs(*real) < 9.2e15)) return std::nullopt;
  return static_cast<int64_t>(std::llround(*real * 1000));
}

void append_minified(std::string_view raw, std::string& out) {
  std::size_t at = 0;
  while (at < raw.size()) {
    const char c = raw[at];
    if (c == '"') {
      std::size_t close = at + 1;
      while (close < raw.size() && raw[close] != '"') close += raw[close] == '\\' ? 2 : 1;
      close = close < raw.size() ? close + 1 : raw.size();
      out.append(raw.substr(at, close - at));
      at = close;
    } else {
      if (static_cast<unsigned char>(c) > 0x20) out += c;
      ++at;
    }
  }
}

}  // namespace kinetoscope
