// Interns texts, numbered in the order in which they were first added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace kinetoscope {

// Good enough for hash tables; not cryptographic.
inline uint64_t hash_text(std::string_view text, uint64_t seed) {
  const char* p = text.data();
  std::size_t left = text.size();
  uint64_t hash = seed ^ (left * 0x9E3779B97F4A7C15ull);
  const auto mix = [&hash](uint64_t word) {
    const unsigned __int128 product = static_cast<unsigned __int128>(hash ^ word) * 0xD6E8FEB86659FD93ull;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  if (left > 0) {
    uint64_t word = 0;
    std::memcpy(&word, p, left);
    mix(word ^ 0xA0761D6478BD642Full);
  }
  return hash ^ (hash >> 29);
}

class TextTable {
 public:
  // The seed differs from run to run, so that no file can be crafted whose texts all collide.
  explicit TextTable(uint64_t seed = 0) : seed_(seed) { slots_.assign(64, {0, -1}); }

  // The number of a text; `fresh` says whether it is new.
  int32_t add(std::string_view text, bool* fresh = nullptr) {
    const uint64_t hash = hash_text(text, seed_);
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at].row >= 0) {
      if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) && (*this)[slots_[at].row] == text) {
        if (fresh != nullptr) *fresh = false;
        return slots_[at].row;
      }
      at = (at + 1) & (slots_.size() - 1);
    }
    if (fresh != nullptr) *fresh = true;
    const int32_t row = static_cast<int32_t>(texts_.size());
    texts_.push_back(keep(text));
    slots_[at] = {static_cast<uint32_t>(hash >> 32), row};
    if (texts_.size() * 2 > slots_.size()) grow();
    return row;
  }

  // The number of a text; -1 if it was never added.
  int32_t find(std::string_view text) const {
    const uint64_t hash = hash_text(text, seed_);
    for (std::size_t at = hash & (slots_.size() - 1); slots_[at].row >= 0;
         at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) && (*this)[slots_[at].row] == text)
        return slots_[at].row;
    }
    return -1;
  }

  std::string_view operator[](int32_t row) const { return texts_[static_cast<std::size_t>(row)]; }
  std::size_t size() const { return texts_.size(); }
  const std::vector<std::string_view>& texts() const { return texts_; }
  // Called when no text will be looked up or added any more.
  void close() {
    slots_.clear();
    slots_.shrink_to_fit();
  }
  // Approximate memory in use.
  std::size_t bytes() const {
    return kept_bytes_ + slots_.size() * sizeof(Slot) + texts_.capacity() * sizeof(std::string_view);
  }

 private:
  struct Slot {
    uint32_t hash;
    int32_t row;
  };
  static constexpr std::size_t kBlockBytes = 1 << 16;

  std::string_view keep(std::string_view text) {
    if (text.size() > room_) {
      const std::size_t bytes = text.size() > kBlockBytes / 4 ? text.size() : kBlockBytes;
      blocks_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
      kept_bytes_ += bytes;
      if (bytes == text.size()) {  // in a block of its own; the current block stays current
        std::memcpy(blocks_.back().get(), text.data(), text.size());
        return {blocks_.back().get(), text.size()};
      }
      free_ = blocks_.back().get();
      room_ = bytes;
    }
    char* at = free_;
    if (!text.empty()) std::memcpy(at, text.data(), text.size());
    free_ += text.size();
    room_ -= text.size();
    return {at, text.size()};
  }

  void grow() {
    std::vector<Slot> bigger(slots_.size() * 2, {0, -1});
    for (std::size_t row = 0; row < texts_.size(); ++row) {
      const uint64_t hash = hash_text(texts_[row], seed_);
      std::size_t at = hash & (bigger.size() - 1);
      while (bigger[at].row >= 0) at = (at + 1) & (bigger.size() - 1);
      bigger[at] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(row)};
    }
    slots_ = std::move(bigger);
  }

  uint64_t seed_;
  std::vector<Slot> slots_;
  std::vector<std::string_view> texts_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* free_ = nullptr;
  std::size_t room_ = 0, kept_bytes_ = 0;
};

}  // namespace kinetoscope
