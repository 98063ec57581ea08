// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::app {

/// Returns the lines for people of the member `account` of `inspect --json`: one for each part, in
/// the order of the time.
std::string account_text(const nlohmann::ordered_json& account);

}  // namespace trireme::app
