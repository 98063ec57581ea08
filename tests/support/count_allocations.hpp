#pragma once

#include <cstdint>

/// Returns the number of calls of operator new so far, by any thread, except those from inside
/// oneDNN. Only for tests that link `count_allocations`.
std::int64_t allocations_so_far();
