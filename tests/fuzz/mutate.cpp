// SPDX-License-Identifier: Apache-2.0
//
// Changes files at random: bits, integers, digits, lengths, and parts of other files.
#include "mutate.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trireme/base/philox.hpp"

namespace trireme::fuzz {

std::uint64_t Mutator::draw(std::uint64_t limit) {
  return mix64(mix64(seed_) + ++draws_) % std::max<std::uint64_t>(limit, 1);
}

std::string Mutator::mutant_of(const std::vector<std::string>& files, std::size_t max_bytes) {
  std::string bytes = files[draw(files.size())];
  for (std::uint64_t changes = 1 + draw(4); changes > 0; --changes) change(bytes, files);
  if (bytes.size() > max_bytes) bytes.resize(max_bytes);
  return bytes;
}

void Mutator::change(std::string& bytes, const std::vector<std::string>& files) {
  const std::size_t at = draw(bytes.size() + 1), size = bytes.size();
  const std::size_t length = 1 + draw(draw(4) == 0 ? 512 : 8);
  switch (draw(10)) {
    case 0:
    case 1:
      if (at < size) bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw(8)));
      break;
    case 2:
      if (at < size) bytes[at] = static_cast<char>(draw(256));
      break;
    case 3:
    case 4: put_integer(bytes); break;
    case 5: put_digits(bytes); break;
    case 6:  // cut short, or without some bytes
      if (draw(2) == 0)
        bytes.resize(at);
      else
        bytes.erase(at, length);
      break;
    case 7:  // new bytes
      bytes.insert(at, length, static_cast<char>(draw(2) == 0 ? 0 : draw(256)));
      break;
    case 8: {  // some bytes once more
      const std::string part = bytes.substr(at, length);
      for (std::uint64_t copies = 1 + draw(draw(8) == 0 ? 64 : 2); copies > 0; --copies)
        bytes.insert(at, part);
      break;
    }
    default: {  // the beginning of this file and the end of another one
      const std::string& other = files[draw(files.size())];
      bytes = bytes.substr(0, at) +
              other.substr(draw(2) == 0 ? std::min(at, other.size()) : draw(other.size() + 1));
    }
  }
}

void Mutator::put_integer(std::string& bytes) {
  const std::size_t width = std::size_t{1} << draw(4);
  if (bytes.size() < width) return;
  const std::size_t at = draw(bytes.size() - width + 1);
  const unsigned bits = static_cast<unsigned>(8 * width);
  const std::uint64_t ones = ~std::uint64_t{0} >> (64 - bits);
  const std::uint64_t values[] = {0,
                                  1,
                                  2,
                                  7,
                                  8,
                                  255,
                                  256,
                                  65535,
                                  65536,
                                  ones,
                                  ones - 1,
                                  ones >> 1,
                                  (ones >> 1) + 1,
                                  ones / 3,
                                  ones / 8,
                                  bytes.size(),
                                  std::uint64_t{1} << draw(bits)};
  std::uint64_t value = values[draw(std::size(values))];
  if (draw(3) == 0) value += draw(5) - 2;  // wraps around
  std::string digits;
  for (std::size_t i = 0; i < width; ++i) digits += static_cast<char>(value >> (8 * i));
  if (draw(2) == 0) std::reverse(digits.begin(), digits.end());
  bytes.replace(at, width, digits);
}

void Mutator::put_digits(std::string& bytes) {
  static constexpr const char* words[] = {"0",
                                          "1",
                                          "9",
                                          "-1",
                                          "00000000007",
                                          "4294967296",
                                          "2147483648",
                                          "77777777777",
                                          "9223372036854775807",
                                          "18446744073709551615",
                                          "1e99"};
  const std::string word = words[draw(std::size(words))];
  // Begins at a digit if one is near.
  std::size_t at = draw(bytes.size() + 1);
  const std::size_t digit = bytes.find_first_of("0123456789", at);
  if (digit != std::string::npos && digit - at < 64) at = digit;
  bytes.replace(at, draw(2) == 0 ? word.size() : 1, word);
}

}  // namespace trireme::fuzz
