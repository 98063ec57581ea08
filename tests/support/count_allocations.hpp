#pragma once

#include <cstdint>

/// Calls of operator new so far, by any thread, in a test that is built with
/// support/count_allocations.cpp.
std::int64_t allocations_so_far();
