#pragma once

#include <cstdio>
#include <cstdlib>

namespace trireme {

[[noreturn]] inline void assumption_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "trireme: broken assumption: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace trireme

/// Checks the program's own assumptions: a failure is a bug. Compiled in with TRIREME_CONTRACTS
/// (debug, asan).
#if defined(TRIREME_CONTRACTS) && defined(TRIREME_FIXED_LOCATIONS)
#define TRIREME_EXPECT(condition) ((condition) ? void(0) : ::trireme::assumption_failed("", "", 0))
#elif defined(TRIREME_CONTRACTS)
#define TRIREME_EXPECT(condition) \
  ((condition) ? void(0) : ::trireme::assumption_failed(#condition, __FILE__, __LINE__))
#else
#define TRIREME_EXPECT(condition) ((void)sizeof(bool(condition)))
#endif
