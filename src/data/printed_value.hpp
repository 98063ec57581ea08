// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace trireme::data {

/// Returns whether the word of a class is how a program prints a value instead of the value: a
/// number in brackets, a call or quotes, as in [3], tensor(3, device='cuda:0'), b'3', or any text
/// in quotes.
bool is_printed_value(std::string_view word);

}  // namespace trireme::data
