// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace trireme::fuzz {

/// The functions of the reader of datagrams (readers.hpp: Reader).
bool read_datagrams(const std::string& file);
std::vector<std::string> datagram_seeds();
void repair_datagrams(std::string& file);

}  // namespace trireme::fuzz
