#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ops {

/// Which algorithm of a device library was found fastest, by problem: found by trying them at a
/// problem's first use, and kept in a small file, so that another start takes the same one, without
/// a trial and with the same bits. Both names are text without control characters, the problem's
/// with the device and the library's version in it; by an algorithm's the library finds it again.
class AlgorithmTable {
 public:
  /// In the place of a library's algorithm: it has none for the problem, for which the program's
  /// own kernel is there.
  static constexpr const char* own_kernel = "own kernel";
  /// In the place of a library's algorithm for several ops at once: they go faster one after the
  /// other, or the library has none.
  static constexpr const char* one_by_one = "one by one";

  /// Of such a text as text() makes. Throws InputError, which names the line, where it is none or
  /// is damaged.
  static AlgorithmTable parse(std::string_view text);
  /// A first line that names the format, then a line a problem, in the order of their names:
  /// checksum, problem, algorithm, with a tab between them.
  std::string to_text() const;

  /// Null where none is known.
  const std::string* find(const std::string& problem) const;
  /// In the place of what was known of the problem.
  void set(const std::string& problem, const std::string& algorithm);
  /// What was known stays.
  void add_missing(const AlgorithmTable& others);

  /// The problems of which own_kernel is kept, in the order of their names.
  std::vector<std::string> own_kernel_problems() const;

  std::size_t size() const { return entries_.size(); }
  bool operator==(const AlgorithmTable&) const = default;

 private:
  std::map<std::string, std::string> entries_;
};

}  // namespace trireme::ops
