// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::fuzz {

/// Makes changed copies of files. The mutants are a function of the seed and of the calls so far.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : seed_(seed) {}

  /// Returns a number below `limit`.
  std::uint64_t draw(std::uint64_t limit);
  /// Returns one of the files with 1 to 4 changes. A mutant has at most `max_bytes` bytes.
  std::string mutant_of(const std::vector<std::string>& files, std::size_t max_bytes);

 private:
  void change(std::string& bytes, const std::vector<std::string>& files);
  /// Writes an interesting integer over bytes.
  void put_integer(std::string& bytes);
  /// Writes decimal or octal digits over bytes, as the texts of headers have them.
  void put_digits(std::string& bytes);

  std::uint64_t seed_, draws_ = 0;
};

}  // namespace trireme::fuzz
