// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/keys/reader.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::parallel {

/// Visits the table [parallel].
void visit_keys(keys::Visitor& visitor, ParallelOptions& options);
/// Adds a mistake for each pair of keys that contradict each other.
void check_keys(const ParallelOptions& options, keys::Reader& reader);
/// Requires that the interleaved schedule and the number of chunks agree. Not for evaluations,
/// which have a schedule of their own.
void check_pipeline_keys(const ParallelOptions& options, keys::Reader& reader);

}  // namespace trireme::parallel
