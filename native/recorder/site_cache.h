// A thread's cache of sites (name, shapes, stack and so on, which many spans have in common) and their
// dictionary ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/recording/format.h"
#include "probing_table.h"

namespace kinetoscope {

inline uint64_t hash_of(const SpanSite& site) {
  const uint64_t place = mix(site.name ^ uint64_t{site.stack} << 32);
  const uint64_t inputs = mix(site.shapes ^ uint64_t{site.module} << 32);
  const uint64_t rest = mix(site.parameter ^ uint64_t{site.scope_and_sequence} << 32);
  return mix(place ^ (inputs << 1 | inputs >> 63) ^ (rest << 2 | rest >> 62));
}

// Every step runs the same sequence of operators, so each site stores which one came next last time: usually
// a lookup is one comparison with a prefetched site.
class SiteCache {
 public:
  explicit SiteCache(size_t most) : most_(most) { clear(); }

  // [hot] Prefetches the expected next site again, in case the operator in between has evicted it.
  void prefetch() const { __builtin_prefetch(&known_[next_]); }

  // [hot] Its id; 0 if it is not known.
  uint32_t find(const SpanSite& site) {
    const Known& expected = known_[next_];
    if (__builtin_expect(expected.site == site, 1)) {
      last_ = next_;
      next_ = expected.next;
      // Far ahead: between two operators nothing waits for it.
      prefetch();
      return expected.id;
    }
    return look_up(site);
  }

  // Adds one that find() did not know.
  void insert(const SpanSite& site, uint32_t id) {
    if (known_.size() > most_) clear();
    if (known_.size() * 2 > slots_.size()) grow();
    const auto row = static_cast<uint32_t>(known_.size());
    known_.push_back({site, id, 0});
    slots_[slot_of(site)] = row;
    go_to(row);
  }

  void clear() {
    // Row 0 is no site's: no scope is that.
    known_.assign(1, {{.scope_and_sequence = UINT32_MAX}, 0, 0});
    slots_.assign(kFirstSlots, 0);
    last_ = next_ = 0;
  }

 private:
  static constexpr size_t kFirstSlots = 256;
  // Two to a line of the processor's cache.
  struct alignas(32) Known {
    SpanSite site;
    uint32_t id;
    uint32_t next;  // the row of the site that came next when it was met last; 0 for none
  };

  size_t slot_of(const SpanSite& site) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash_of(site) & mask;
    while (slots_[at] != 0 && !(known_[slots_[at]].site == site)) at = (at + 1) & mask;
    return at;
  }

  [[gnu::noinline]] uint32_t look_up(const SpanSite& site) {
    const uint32_t row = slots_[slot_of(site)];
    if (row == 0) return 0;
    go_to(row);
    return known_[row].id;
  }

  void go_to(uint32_t row) {
    known_[last_].next = row;
    last_ = row;
    next_ = known_[row].next;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    for (uint32_t row = 1; row < known_.size(); ++row) slots_[slot_of(known_[row].site)] = row;
  }

  std::vector<Known> known_;
  std::vector<uint32_t> slots_;  // rows by hash; 0: empty
  uint32_t last_ = 0, next_ = 0;
  size_t most_;
};

}  // namespace kinetoscope
