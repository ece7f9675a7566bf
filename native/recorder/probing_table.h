// A small open-addressing map for one thread's caches: grows, forgets everything at once, never removes one
// key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kinetoscope {

// `Key` needs == and a member `uint64_t hash() const`; a value of 0 marks an empty slot, so ids start at 1.
template <typename Key>
class ProbingTable {
 public:
  // One that is only a cache may forget everything when it has `most` keys.
  explicit ProbingTable(size_t most = SIZE_MAX) : slots_(256), most_(most) {}

  // The value of `key`, or 0.
  uint32_t find(const Key& key) const {
    const size_t mask = slots_.size() - 1;
    for (size_t at = key.hash() & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.value == 0) return 0;
      if (slot.key == key) return slot.value;
    }
  }

  // Sets the value of `key`, over an older one.
  void insert(const Key& key, uint32_t value) {
    if (used_ >= most_) clear();
    if (used_ * 2 >= slots_.size()) grow();
    if (place(slots_, key, value)) ++used_;
  }

  void clear() {
    if (used_ == 0) return;
    slots_.assign(slots_.size(), Slot{});
    used_ = 0;
  }

 private:
  struct Slot {
    Key key{};
    uint32_t value = 0;
  };

  static bool place(std::vector<Slot>& slots, const Key& key, uint32_t value) {
    const size_t mask = slots.size() - 1;
    for (size_t at = key.hash() & mask;; at = (at + 1) & mask) {
      Slot& slot = slots[at];
      if (slot.value == 0) {
        slot = Slot{key, value};
        return true;
      }
      if (slot.key == key) {
        slot.value = value;
        return false;
      }
    }
  }

  void grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_)
      if (slot.value != 0) place(larger, slot.key, slot.value);
    slots_.swap(larger);
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
  size_t most_;
};

// Spreads a word's bits; enough for tables that hold addresses and counters.
inline uint64_t mix(uint64_t word) {
  word *= 0x9E3779B97F4A7C15ull;
  return word ^ (word >> 29);
}

// Hashes `bytes` bytes eight at a time.
inline uint64_t hash_bytes(const char* data, size_t bytes) {
  uint64_t state = bytes;
  while (bytes >= 8) {
    uint64_t word;
    __builtin_memcpy(&word, data, 8);
    state = mix(state ^ word);
    data += 8;
    bytes -= 8;
  }
  uint64_t tail = 0;
  __builtin_memcpy(&tail, data, bytes);
  return mix(state ^ tail);
}

// Content known by 128 bits of hash.
struct TextKey {
  uint64_t first = 0;
  uint64_t second = 0;
  bool operator==(const TextKey&) const = default;
  uint64_t hash() const { return first; }
};

}  // namespace kinetoscope
