// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

namespace trireme {

/// Prints the failed condition of a TRIREME_EXPECT and aborts the process.
[[noreturn]] inline void assumption_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "trireme: broken assumption: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace trireme

/// Checks an assumption of the program: a failure is a bug in Trireme, and the process aborts.
/// Compiled in only with TRIREME_CONTRACTS (presets debug and asan); otherwise the condition is
/// compiled but never evaluated. TRIREME_FIXED_LOCATIONS drops the file and line.
#if defined(TRIREME_CONTRACTS) && defined(TRIREME_FIXED_LOCATIONS)
#define TRIREME_EXPECT(condition) ((condition) ? void(0) : ::trireme::assumption_failed("", "", 0))
#elif defined(TRIREME_CONTRACTS)
#define TRIREME_EXPECT(condition) \
  ((condition) ? void(0) : ::trireme::assumption_failed(#condition, __FILE__, __LINE__))
#else
#define TRIREME_EXPECT(condition) ((void)sizeof(bool(condition)))
#endif
