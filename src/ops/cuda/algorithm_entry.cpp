// SPDX-License-Identifier: Apache-2.0
#include "algorithm_entry.hpp"

#include <fmt/format.h>

namespace trireme::ops::cuda {
namespace {

constexpr std::size_t digits = 16;

}  // namespace

std::string name_of(std::span<const std::uint64_t> words) {
  std::string name;
  for (const std::uint64_t word : words) name += fmt::format("{:016x}", word);
  return name;
}

bool parse_words(const std::string& name, std::span<std::uint64_t> words) {
  const bool is_one = name.size() == digits * words.size() &&
                      name.find_first_not_of("0123456789abcdef") == std::string::npos;
  for (std::size_t i = 0; is_one && i < words.size(); ++i)
    words[i] = std::stoull(name.substr(i * digits, digits), nullptr, 16);
  return is_one;
}

}  // namespace trireme::ops::cuda
