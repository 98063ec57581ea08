#pragma once

#include <string>
#include <string_view>

namespace trireme::monitor {

/// Appends `bytes` with one write (more only where the system takes a part of them). `path` is for messages. Throws Failure.
void append(int file, std::string_view bytes, const std::string& path);

}  // namespace trireme::monitor
