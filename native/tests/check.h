// The smallest test frame that does: CHECK says what failed and where, and goes on; checks_failed() is main's
// result.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kinetoscope::testing {

// ThreadSanitizer finds nothing where there is one thread, and such tests take several times longer under it.
#if defined(__SANITIZE_THREAD__)
constexpr bool kLooksForRaces = true;
#else
constexpr bool kLooksForRaces = false;
#endif

// How often a test repeats what it tries: `stress` in `make stress`, which sets KINETOSCOPE_STRESS.
inline uint64_t times(uint64_t quick, uint64_t stress) {
  const char* set = std::getenv("KINETOSCOPE_STRESS");
  return set != nullptr && *set != '\0' && std::strcmp(set, "0") != 0 ? stress : quick;
}

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
