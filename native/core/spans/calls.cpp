#include "calls.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "../recording/format.h"
#include "nesting.h"

namespace kinetoscope {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct OpenCall {
  int64_t start_ns, end_ns;
  int32_t step;
  bool worked, unsure;
};

struct Call {
  int64_t start_ns, duration_ns;
  int32_t thread, step, depth;
  bool unsure;
};

// The calls around the present operator, outermost first. Only the innermost one's end is up to date: it
// passes its own on when it is closed.
class OpenCalls {
 public:
  std::vector<OpenCall> open;
  std::vector<Call> ended;

  void extend(int64_t end_ns) {
    open.back().end_ns = std::max(open.back().end_ns, end_ns);
    open.back().worked = true;
  }

  // Ends all but the outermost `keep`. A range may outlast the call that opened it: the operator that begins
  // at `now_ns` shows that the call is over.
  void close(std::size_t keep, int32_t thread, int64_t now_ns) {
    while (open.size() > keep) {
      const OpenCall call = open.back();
      open.pop_back();
      if (!call.worked) continue;
      if (!open.empty()) extend(call.end_ns);
      const int64_t end_ns = std::min(call.end_ns, now_ns);
      ended.push_back({call.start_ns, end_ns - call.start_ns, thread, call.step,
                       static_cast<int32_t>(open.size()), call.unsure});
    }
  }
};

void check(const CallSources& operators, const CallPaths& paths) {
  const std::size_t rows = operators.thread.size();
  if (operators.start_ns.size() != rows || operators.duration_ns.size() != rows ||
      operators.path.size() != rows || operators.kept.size() != rows) {
    throw BadColumns("rebuild_calls: the columns of the operators have different lengths");
  }
  if (paths.path_begin.empty() || paths.key.size() != paths.frames.size()) {
    throw BadColumns("rebuild_calls: path_begin is empty, or key and frames have different lengths");
  }
  const auto steps = static_cast<int64_t>(paths.key.size());
  int64_t last = 0;
  for (const int32_t begin : paths.path_begin) {
    if (begin < last || begin > steps)
      throw BadColumns("rebuild_calls: path_begin is not ascending or exceeds the number of steps");
    last = begin;
  }
  const auto count = static_cast<int64_t>(paths.path_begin.size()) - 1;
  for (const int32_t path : operators.path) {
    if (path < 0 || path >= count) throw BadColumns("rebuild_calls: the path of an operator is out of range");
  }
}

}  // namespace

Calls rebuild_calls(const CallSources& operators, const CallPaths& paths) {
  check(operators, paths);
  OpenCalls calls;
  int32_t thread = -1, present = -1;
  for (std::size_t row = 0; row < operators.thread.size(); ++row) {
    if (operators.thread[row] != thread) {
      calls.close(0, thread, kNever);
      thread = operators.thread[row];
      present = -1;
    }
    const int32_t path = operators.path[row], frames = (operators.kept[row] & kKeptMask) - 1;
    const int64_t start_ns = operators.start_ns[row];
    if (path != present || frames >= 0) {
      const auto first = static_cast<std::size_t>(paths.path_begin[static_cast<std::size_t>(path)]);
      const auto end = static_cast<std::size_t>(paths.path_begin[static_cast<std::size_t>(path) + 1]);
      std::size_t same = 0;
      while (same < calls.open.size() && first + same < end) {
        const auto step = static_cast<std::size_t>(calls.open[same].step);
        const bool is_new = frames >= 0 && frames <= paths.frames[first + same];
        if (paths.key[step] != paths.key[first + same] || is_new) break;
        ++same;
      }
      calls.close(same, thread, start_ns);
      for (std::size_t step = first + same; step < end; ++step) {
        calls.open.push_back({start_ns, start_ns, static_cast<int32_t>(step), false, false});
      }
      present = path;
      if (const int32_t unsure = operators.kept[row] >> kUnsureShift; unsure != 0) {
        for (std::size_t call = 0; call < same; ++call) {
          OpenCall& going_on = calls.open[call];
          going_on.unsure |= paths.frames[static_cast<std::size_t>(going_on.step)] >= frames - unsure;
        }
      }
    }
    if (const int64_t duration_ns = operators.duration_ns[row]; !calls.open.empty() && duration_ns >= 0) {
      calls.extend(start_ns + duration_ns);
    }
  }
  calls.close(0, thread, kNever);
  const std::size_t count = calls.ended.size();
  Calls made{Column<int32_t>(count), Column<int64_t>(count), Column<int64_t>(count),
             Column<int32_t>(count), Column<int32_t>(count), Column<uint8_t>(count)};
  for (std::size_t row = 0; row < count; ++row) {
    const Call& call = calls.ended[row];
    made.thread[row] = call.thread;
    made.start_ns[row] = call.start_ns;
    made.duration_ns[row] = call.duration_ns;
    made.step[row] = call.step;
    made.depth[row] = call.depth;
    made.unsure[row] = call.unsure ? 1 : 0;
  }
  return made;
}

}  // namespace kinetoscope
