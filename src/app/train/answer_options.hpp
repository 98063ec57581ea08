// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/base/answer.hpp"

namespace trireme::app {

/// Throws InputError if one of the options of `evaluate` or `predict` that were given on the
/// command line needs a model with another answer.
void validate_answer_options(const Answer& answer, const std::vector<std::string>& given);

}  // namespace trireme::app
