// Skips through JSON text at memory speed, without building anything.
//
// Every function takes a position and the end of the text, and returns the position behind what it skipped,
// or nullptr if the text ends first or is not valid. The text is followed by kScanPadding readable bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kinetoscope {

inline constexpr std::size_t kScanPadding = 64;

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

inline const char* skip_space(const char* p, const char* end) {
  if (p < end && static_cast<unsigned char>(*p) > 0x20) return p;
#if defined(__SSE2__)
  while (p < end) {
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    // Other control characters are invalid: skipped as space, they would split a number.
    const __m128i is_space = _mm_or_si128(
        _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\n'))),
        _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('\t')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\r'))));
    const unsigned other = ~static_cast<unsigned>(_mm_movemask_epi8(is_space)) & 0xFFFFu;
    if (other != 0) {
      p += std::countr_zero(other);
      return p < end ? p : end;
    }
    p += 16;
  }
  return end;
#else
  while (p < end && is_json_space(*p)) ++p;
  return p;
#endif
}

// From behind the opening quote to the closing one; `escaped` is set where there is a backslash.
inline const char* find_closing_quote(const char* p, const char* end, bool& escaped) {
  while (p < end) {
#if defined(__SSE2__)
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i hit =
        _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
    const unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(hit));
    if (mask == 0) {
      p += 16;
      continue;
    }
    p += std::countr_zero(mask);
#else
    while (p < end && *p != '"' && *p != '\\') ++p;
#endif
    if (p >= end) return nullptr;
    if (*p == '"') return p;
    escaped = true;
    p += 2;
  }
  return nullptr;
}

// Skips a number, true, false, null, or any other text without brackets and quotes.
inline bool ends_scalar(char c) {
  return c == ',' || c == '}' || c == ']' || static_cast<unsigned char>(c) <= 0x20;
}

inline const char* skip_scalar(const char* p, const char* end) {
  const char* begin = p;
#if defined(__SSE2__)
  // Most numbers end within sixteen bytes, and what ends them is smaller than a dash, or above the letters.
  while (p < end) {
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i folded = _mm_or_si128(text, _mm_set1_epi8(0x20));
    const __m128i hit = _mm_or_si128(
        _mm_or_si128(_mm_cmplt_epi8(text, _mm_set1_epi8('-')), _mm_cmpeq_epi8(text, _mm_set1_epi8(':'))),
        _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')), _mm_cmpeq_epi8(folded, _mm_set1_epi8('}'))));
    unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(hit));
    const char* next = p + 16;
    for (; mask != 0; mask &= mask - 1) {
      const char* at = p + std::countr_zero(mask);
      if (at >= end) return begin == end ? nullptr : end;
      if (ends_scalar(*at)) return at == begin ? nullptr : at;
      if (*at == '"' || *at == '{' || *at == '[' || *at == ':') return nullptr;
    }
    p = next;
  }
  return end;
#else
  while (p < end && !ends_scalar(*p)) {
    if (*p == '"' || *p == '{' || *p == '[' || *p == ':') return nullptr;
    ++p;
  }
  return p == begin ? nullptr : p;
#endif
}

// An object or array, from its bracket to behind the one that closes it; `deepest` is raised to its depth.
inline const char* skip_composite(const char* p, const char* end, std::size_t& deepest) {
  std::size_t depth = 0;
  bool escaped = false;
  while (p < end) {
#if defined(__SSE2__)
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    // Bit 5 is all in which [ and {, ] and } differ.
    const __m128i folded = _mm_or_si128(text, _mm_set1_epi8(0x20));
    const __m128i hit = _mm_or_si128(
        _mm_cmpeq_epi8(text, _mm_set1_epi8('"')),
        _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')), _mm_cmpeq_epi8(folded, _mm_set1_epi8('}'))));
    unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(hit));
    const char* next = p + 16;
    while (mask != 0) {
      const char* at = p + std::countr_zero(mask);
      mask &= mask - 1;
      if (at >= end) return nullptr;
      if (*at == '"') {
        const char* close = find_closing_quote(at + 1, end, escaped);
        if (close == nullptr) return nullptr;
        if (close + 1 >= next) {
          next = close + 1;
          mask = 0;
        } else {
          mask &= ~0u << (close + 1 - p);
        }
      } else if (*at == '{' || *at == '[') {
        if (++depth > deepest) deepest = depth;
      } else if (*at == '}' || *at == ']') {
        if (--depth == 0) return at + 1;
      }
    }
    p = next;
#else
    const char c = *p++;
    if (c == '"') {
      const char* close = find_closing_quote(p, end, escaped);
      if (close == nullptr) return nullptr;
      p = close + 1;
    } else if (c == '{' || c == '[') {
      if (++depth > deepest) deepest = depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return p;
    }
#endif
  }
  return nullptr;
}

// Any value.
inline const char* skip_value(const char* p, const char* end, std::size_t& deepest) {
  if (p >= end) return nullptr;
  if (*p == '"') {
    bool escaped = false;
    const char* close = find_closing_quote(p + 1, end, escaped);
    return close == nullptr ? nullptr : close + 1;
  }
  if (*p == '{' || *p == '[') return skip_composite(p, end, deepest);
  return skip_scalar(p, end);
}

}  // namespace kinetoscope
