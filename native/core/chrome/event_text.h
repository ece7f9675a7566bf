// Writes JSON of known length at a pointer.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kinetoscope {

// The caller has reserved the space; nothing is checked here.
class EventText {
 public:
  explicit EventText(char* at) : at_(at) {}

  EventText& operator<<(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
    return *this;
  }
  template <std::size_t N>
  EventText& operator<<(const char (&text)[N]) {
    std::memcpy(at_, text, N - 1);
    at_ += N - 1;
    return *this;
  }
  EventText& number(int64_t value) {
    at_ = std::to_chars(at_, at_ + 20, value).ptr;
    return *this;
  }
  EventText& number(uint64_t value) {
    at_ = std::to_chars(at_, at_ + 20, value).ptr;
    return *this;
  }
  // The shortest text that parses to exactly this finite number.
  EventText& number(double value) {
    at_ = std::to_chars(at_, at_ + 24, value).ptr;
    return *this;
  }
  // Nanoseconds as microseconds with three decimals, exactly.
  EventText& microseconds(int64_t time_ns) {
    uint64_t magnitude = static_cast<uint64_t>(time_ns);
    if (time_ns < 0) {
      *at_++ = '-';
      magnitude = 0 - magnitude;
    }
    number(magnitude / 1000);
    const auto rest = static_cast<unsigned>(magnitude % 1000);
    *at_++ = '.';
    *at_++ = static_cast<char>('0' + rest / 100);
    *at_++ = static_cast<char>('0' + rest / 10 % 10);
    *at_++ = static_cast<char>('0' + rest % 10);
    return *this;
  }
  char* end() const { return at_; }

 private:
  char* at_;
};

}  // namespace kinetoscope
