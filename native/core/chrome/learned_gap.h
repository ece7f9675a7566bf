// Remembers the text between two values: writers put the same keys in the same order, with the same spaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "json_scan.h"

namespace kinetoscope {

// The text from the end of one value to the start of the next: a comma, spaces, a key in quotes, a colon,
// spaces.
class LearnedGap {
 public:
  // The start of the next value if the same text is at `p`, else nullptr. `p` is followed by kScanPadding
  // bytes.
  const char* passed(const char* p, const char* end) const {
    if (size_ == 0 || end - p <= size_) return nullptr;
#if defined(__SSE2__)
    for (std::size_t at = 0; at < size_; at += 16) {
      const __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + at)),
                                          _mm_load_si128(reinterpret_cast<const __m128i*>(text_ + at)));
      const unsigned differ = ~static_cast<unsigned>(_mm_movemask_epi8(same)) & 0xFFFFu;
      if (differ != 0 && at + static_cast<std::size_t>(std::countr_zero(differ)) < size_) return nullptr;
    }
#else
    if (std::memcmp(p, text_, size_) != 0) return nullptr;
#endif
    return p + size_;
  }
  uint8_t key() const { return key_; }

  void learn(const char* begin, const char* end, std::size_t key) {
    const std::size_t size = static_cast<std::size_t>(end - begin);
    size_ = 0;
    if (size > sizeof text_) return;
    std::memcpy(text_, begin, size);
    size_ = static_cast<uint8_t>(size);
    key_ = static_cast<uint8_t>(key);
  }

 private:
  alignas(16) char text_[48] = {};
  uint8_t size_ = 0, key_ = 0;
};

}  // namespace kinetoscope
