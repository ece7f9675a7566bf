// A set of dictionary ids, which are clustered, but may have any value.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

namespace kinetoscope {

class IdSet {
 public:
  IdSet() = default;
  IdSet(IdSet&&) = default;
  IdSet& operator=(IdSet&&) = default;

  // Whether it was not in the set before.
  bool insert(uint32_t id) {
    uint64_t& word = page_of(id)[word_in_page(id)];
    const uint64_t before = word;
    word |= bit(id);
    return word != before;
  }
  bool contains(uint32_t id) const {
    const auto page = pages_.find(id >> kPageBits);
    return page != pages_.end() && (page->second[word_in_page(id)] & bit(id)) != 0;
  }

 private:
  static constexpr uint32_t kPageBits = 12;
  using Page = std::array<uint64_t, (1u << kPageBits) / 64>;

  static size_t word_in_page(uint32_t id) { return (id & ((1u << kPageBits) - 1)) / 64; }
  static uint64_t bit(uint32_t id) { return uint64_t{1} << (id % 64); }

  Page& page_of(uint32_t id) {
    const uint32_t number = id >> kPageBits;
    if (last_ == nullptr || last_number_ != number) {
      // Pages stay where they are when the map grows.
      last_ = &pages_.try_emplace(number).first->second;
      last_number_ = number;
    }
    return *last_;
  }

  std::unordered_map<uint32_t, Page> pages_;
  Page* last_ = nullptr;
  uint32_t last_number_ = 0;
};

}  // namespace kinetoscope
