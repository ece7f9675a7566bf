// The free units of a recording file, as runs of adjacent units.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace kinetoscope {

struct UnitRun {
  uint64_t first = 0;
  uint64_t units = 0;  // 0: there is none
};

// Free runs, indexed by position and by length. No two of them are adjacent as long as each new run is joined
// with its neighbors, which take_at() and take_before() find.
class FreeRuns {
 public:
  // Total units of all runs.
  uint64_t units() const { return units_; }

  UnitRun longest() const { return by_length_.empty() ? UnitRun{} : run_of(*by_length_.rbegin()); }
  // The shortest run of at least that length.
  UnitRun shortest_of(uint64_t units) const {
    const auto found = by_length_.lower_bound({units, 0});
    return found == by_length_.end() ? UnitRun{} : run_of(*found);
  }

  void add(UnitRun run) {
    by_place_.emplace(run.first, run.units);
    by_length_.emplace(run.units, run.first);
    units_ += run.units;
  }
  // Removes the run that begins there, if one does.
  UnitRun take_at(uint64_t first) { return take(by_place_.find(first)); }
  // Removes the run that ends there, if one does.
  UnitRun take_before(uint64_t end) {
    const auto after = by_place_.lower_bound(end);
    if (after == by_place_.begin()) return {};
    const auto before = std::prev(after);
    return before->first + before->second == end ? take(before) : UnitRun{};
  }

 private:
  using Places = std::map<uint64_t, uint64_t>;

  static UnitRun run_of(const std::pair<uint64_t, uint64_t>& length) { return {length.second, length.first}; }

  UnitRun take(Places::iterator at) {
    if (at == by_place_.end()) return {};
    const UnitRun run{at->first, at->second};
    by_place_.erase(at);
    by_length_.erase({run.units, run.first});
    units_ -= run.units;
    return run;
  }

  Places by_place_;                                    // how long it is, by its first unit
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // its length, its first unit
  uint64_t units_ = 0;
};

}  // namespace kinetoscope
