// Bytes in the wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding/).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "../columns/column.h"

namespace kinetoscope {

// Grows as it is written to and keeps its memory when it is cleared.
class ProtobufBuffer {
 public:
  void clear() { used_ = 0; }
  std::size_t size() const { return used_; }
  bool empty() const { return used_ == 0; }
  std::string_view view() const { return {bytes_.data(), used_}; }

  // A field of type int64, uint64, int32, uint32, bool or an enumeration.
  void number(uint32_t field, uint64_t value) {
    make_room(2 * kMostVarint);
    varint(field << 3 | kVarint);
    varint(value);
  }
  void fixed64(uint32_t field, uint64_t value) {
    make_room(kMostVarint + sizeof(value));
    varint(field << 3 | kFixed64);
    // The format is little-endian, as are all machines that torch runs on.
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(bytes_.data() + used_, &value, sizeof(value));
    used_ += sizeof(value);
  }
  void real(uint32_t field, double value) { fixed64(field, std::bit_cast<uint64_t>(value)); }
  // A string, bytes, or a message that is encoded already.
  void bytes(uint32_t field, std::string_view value) {
    make_room(2 * kMostVarint + value.size());
    varint(field << 3 | kBytes);
    varint(value.size());
    raw(value);
  }
  void message(uint32_t field, const ProtobufBuffer& value) { bytes(field, value.view()); }
  // What is already encoded.
  void append(std::string_view encoded) {
    make_room(encoded.size());
    raw(encoded);
  }

 private:
  static constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2;
  static constexpr std::size_t kMostVarint = 10;
  static constexpr std::size_t kFirstBytes = 256;

  void varint(uint64_t value) {
    auto* at = reinterpret_cast<unsigned char*>(bytes_.data()) + used_;
    while (value >= 0x80) {
      *at++ = static_cast<unsigned char>(value | 0x80);
      value >>= 7;
    }
    *at++ = static_cast<unsigned char>(value);
    used_ = static_cast<std::size_t>(reinterpret_cast<char*>(at) - bytes_.data());
  }
  void raw(std::string_view value) {
    if (value.empty()) return;
    std::memcpy(bytes_.data() + used_, value.data(), value.size());
    used_ += value.size();
  }
  void make_room(std::size_t more) {
    if (bytes_.size() - used_ >= more) return;
    std::size_t size = bytes_.size() < kFirstBytes ? kFirstBytes : bytes_.size();
    while (size - used_ < more) size *= 2;
    Column<char> larger(size);
    if (used_ > 0) std::memcpy(larger.data(), bytes_.data(), used_);
    bytes_ = std::move(larger);
  }

  Column<char> bytes_;
  std::size_t used_ = 0;
};

}  // namespace kinetoscope
