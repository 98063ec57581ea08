// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/base/log.hpp"

namespace trireme::io {

/// Renames a file that cannot be used to NAME.damaged, and warns of `why`, which names the path.
/// Throws the errors of rename_durably().
void keep_as_damaged(const std::string& path, const std::string& why, Log& log);

}  // namespace trireme::io
