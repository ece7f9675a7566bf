#include "replay.h"

#include <algorithm>
#include <vector>

#include "nesting.h"
#include "wrapping_sum.h"

namespace kinetoscope {
namespace {

void check(const CollectiveVisits& visits) {
  const std::size_t count = visits.collective.size(), collectives = visits.transfer_ns.size();
  if (visits.before.size() != count || visits.own_ns.size() != count ||
      visits.first_visit.size() != collectives + 1) {
    throw BadColumns("replay_collectives: the columns have different lengths");
  }
  const auto outside = [](std::span<const int64_t> values, int64_t least, std::size_t bound) {
    return std::any_of(values.begin(), values.end(),
                       [=](int64_t value) { return value < least || value >= static_cast<int64_t>(bound); });
  };
  if (outside(visits.collective, 0, collectives) || outside(visits.before, -1, count) ||
      outside(visits.first_visit, 0, count + 1) ||
      !std::is_sorted(visits.first_visit.begin(), visits.first_visit.end())) {
    throw BadColumns("replay_collectives: an index is out of range");
  }
}

}  // namespace

Column<int64_t> replay_collectives(const CollectiveVisits& visits) {
  check(visits);
  const std::size_t count = visits.collective.size(), collectives = visits.transfer_ns.size();
  const auto at = [](std::span<const int64_t> values, std::size_t place) {
    return static_cast<std::size_t>(values[place]);
  };
  // The visits that follow each: a chain from the last one to the first.
  std::vector<int64_t> follower(count, -1), next_follower(count, -1);
  std::vector<std::size_t> ready;
  for (std::size_t visit = 0; visit < count; ++visit) {
    if (visits.before[visit] < 0) {
      ready.push_back(visit);
    } else {
      next_follower[visit] = follower[at(visits.before, visit)];
      follower[at(visits.before, visit)] = static_cast<int64_t>(visit);
    }
  }
  std::vector<int64_t> latest_ns(collectives, 0), missing(collectives, 0);
  for (std::size_t visit = 0; visit < count; ++visit) ++missing[at(visits.collective, visit)];
  Column<int64_t> left_ns(collectives, -1);
  while (!ready.empty()) {
    const std::size_t visit = ready.back();
    ready.pop_back();
    const std::size_t collective = at(visits.collective, visit);
    const int64_t from_ns =
        visits.before[visit] < 0 ? 0 : left_ns[at(visits.collective, at(visits.before, visit))];
    latest_ns[collective] = std::max(latest_ns[collective], wrapping_sum(from_ns, visits.own_ns[visit]));
    if (--missing[collective] > 0) continue;
    left_ns[collective] = wrapping_sum(latest_ns[collective], visits.transfer_ns[collective]);
    for (std::size_t done = at(visits.first_visit, collective); done < at(visits.first_visit, collective + 1);
         ++done) {
      for (int64_t next = follower[done]; next >= 0; next = next_follower[static_cast<std::size_t>(next)])
        ready.push_back(static_cast<std::size_t>(next));
    }
  }
  return left_ns;
}

}  // namespace kinetoscope
