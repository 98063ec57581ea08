// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/comm/environment.hpp"

/// Returns the MPI environment of a test that runs with RANKS (tests/support/mpi_main.cpp).
trireme::comm::Environment& test_environment();
