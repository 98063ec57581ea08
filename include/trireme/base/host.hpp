#pragma once

#include <string>

namespace trireme {

/// This machine's name, as gethostname() gives it. Throws Failure.
std::string host_name();

/// Opens /dev/null in the place of standard streams that are closed: the next file opened, a
/// checkpoint maybe, would get its number, and what is printed.
void open_missing_standard_streams();

}  // namespace trireme
