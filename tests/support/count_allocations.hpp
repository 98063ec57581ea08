// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Returns the number of calls of operator new so far, by any thread, from the test and from
/// Trireme: not from inside oneDNN, Kokkos and the CUDA libraries. Only for tests that link
/// `count_allocations`.
std::int64_t allocations_so_far();
