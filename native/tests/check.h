// The smallest test frame that does: CHECK says what failed and where, and goes on; checks_failed() is main's
// result.
#pragma once

#include <cstdio>

namespace kinetoscope::testing {

inline int& failures() {
  static int count = 0;
  return count;
}

inline void check(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  ++failures();
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
}

inline int checks_failed() { return failures() == 0 ? 0 : 1; }

}  // namespace kinetoscope::testing

#define CHECK(condition) ::kinetoscope::testing::check((condition), #condition, __FILE__, __LINE__)

// Checks that evaluating `expression` throws an `exception`.
#define CHECK_THROWS(expression, exception)                                           \
  do {                                                                                \
    bool thrown = false;                                                              \
    try {                                                                             \
      static_cast<void>(expression);                                                  \
    } catch (const exception&) {                                                      \
      thrown = true;                                                                  \
    }                                                                                 \
    ::kinetoscope::testing::check(thrown, #expression " throws", __FILE__, __LINE__); \
  } while (false)
