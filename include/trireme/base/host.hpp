#pragma once

#include <string>

namespace trireme {

/// This machine's name, as gethostname() gives it. Throws Failure.
std::string host_name();

}  // namespace trireme
