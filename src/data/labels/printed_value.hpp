// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace trireme::data {

/// Returns whether a text is a number, such as "3", "3.0", "1e3" or "nan". A number that is not a
/// whole one is no name of a class: such names would be sorted as texts, 10.0 before 2.0.
bool is_number(std::string_view text);

/// Returns whether the word of a class is how a program prints a value instead of the value: a
/// number in brackets, a call or quotes, as in [3], tensor(3, device='cuda:0'), b'3', or any text
/// in quotes.
bool is_printed_value(std::string_view word);

}  // namespace trireme::data
