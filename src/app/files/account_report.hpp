// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trireme/monitor/run_account.hpp"

namespace trireme::app {

/// Returns the account of a run as the member `account` of `inspect --json`.
nlohmann::ordered_json to_json(const monitor::Account& account);

/// Returns the lines for people of such a member: one for each part, in the order of the time.
std::string account_text(const nlohmann::ordered_json& account);

}  // namespace trireme::app
