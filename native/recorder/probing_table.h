// A small open-addressing map for the caches of a thread: it grows, and can be cleared, but keys cannot be
// removed individually.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kinetoscope {

inline bool is_empty(uint32_t id) { return id == 0; }

// `Key` needs == and a member `uint64_t hash() const`; is_empty() tells the value of an empty slot, for ids
// 0.
template <typename Key, typename Value = uint32_t>
class ProbingTable {
 public:
  // A cache is cleared when it has `most` keys.
  explicit ProbingTable(size_t most = SIZE_MAX) : slots_(kFirstSlots), most_(most) {}

  // The value of `key`, or an empty one.
  Value find(const Key& key) const { return slots_[slot_of(slots_, key)].value; }
  // A reference to the value of `key`, which may be changed; empty if the key is new.
  Value& at(const Key& key) { return slots_[slot_of(slots_, key)].value; }

  // Prefetches the slot of `key`.
  void prefetch(const Key& key) const { __builtin_prefetch(&slots_[key.hash() & (slots_.size() - 1)]); }

  // Sets the value of `key`, over an older one.
  void insert(const Key& key, const Value& value) {
    if (used_ >= most_) clear();
    if (used_ * 2 >= slots_.size()) grow();
    if (place(slots_, key, value)) ++used_;
  }

  void clear() {
    if (used_ == 0) return;
    // Larger tables are freed by clear(), rather than kept and zeroed: their keys may not come again.
    constexpr size_t kMostCleared = 4096;
    if (slots_.size() > kMostCleared)
      std::vector<Slot>(kFirstSlots).swap(slots_);
    else
      slots_.assign(slots_.size(), Slot{});
    used_ = 0;
  }

  // Calls `visit(key, value)` for each.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (!is_empty(slot.value)) visit(slot.key, slot.value);
  }

 private:
  static constexpr size_t kFirstSlots = 256;
  struct Pair {
    Key key;
    Value value;
  };
  // Aligned so that a slot lies in one cache line: it is evicted between operators.
  struct alignas(sizeof(Pair) <= 64 ? std::bit_ceil(sizeof(Pair)) : alignof(Pair)) Slot {
    Key key{};
    Value value{};
  };

  // Where a key is, or would be.
  static size_t slot_of(const std::vector<Slot>& slots, const Key& key) {
    const size_t mask = slots.size() - 1;
    size_t at = key.hash() & mask;
    while (!is_empty(slots[at].value) && !(slots[at].key == key)) at = (at + 1) & mask;
    return at;
  }

  static bool place(std::vector<Slot>& slots, const Key& key, const Value& value) {
    Slot& slot = slots[slot_of(slots, key)];
    const bool fresh = is_empty(slot.value);
    slot = Slot{key, value};
    return fresh;
  }

  void grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_)
      if (!is_empty(slot.value)) place(larger, slot.key, slot.value);
    slots_.swap(larger);
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
  size_t most_;
};

// Mixes the bits of a word; sufficient for addresses and counters.
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

struct AddressKey {
  const void* address = nullptr;
  bool operator==(const AddressKey&) const = default;
  uint64_t hash() const { return mix(reinterpret_cast<uintptr_t>(address)); }
};

// A key of 128 bits of hash.
struct TextKey {
  uint64_t first = 0;
  uint64_t second = 0;
  bool operator==(const TextKey&) const = default;
  uint64_t hash() const { return first; }
};

}  // namespace kinetoscope
