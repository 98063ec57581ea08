#pragma once

#include <string>

namespace trireme {

/// Returns whether a path still names an open file. It does not after the file was removed or
/// renamed, or after another one got its name.
bool names_open_file(const std::string& path, int descriptor);

}  // namespace trireme
