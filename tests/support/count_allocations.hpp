#pragma once

#include <cstdint>

/// Returns the number of calls of operator new so far, by any thread. Only for tests that link
/// support/count_allocations.cpp.
std::int64_t allocations_so_far();
