// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ops {

/// The table of the algorithms that a device library was found to run fastest, by problem.
///
/// CUDA backends time the library's proposals at the first use of a problem and record the winner
/// here. train's AlgorithmFile saves the table, so that a later start takes the same algorithms
/// without a trial and computes the same bits. Keys and values are text without control characters.
/// A key holds the device, the library's version and the problem; a value is the name by which the
/// library finds the algorithm again.
///
///   first start   product used -> proposals timed (host waits) -> set(problem, fastest)
///                 checkpoint -> AlgorithmFile writes to_text()
///   next start    AlgorithmFile reads the file -> parse()
///                 product used -> find(problem): no trial, same bits
class AlgorithmTable {
 public:
  /// The value of a problem for which the library has no algorithm: the program's own kernel
  /// computes it. Another reason than that follows the value, after a colon and a space.
  static constexpr const char* own_kernel = "own kernel";
  /// The value of a fused problem (several ops at once) for which separate kernels are faster, or
  /// which the library cannot run.
  static constexpr const char* one_by_one = "one by one";
  /// The value of a choice between two ways whose first one, such as a product with an epilogue,
  /// was faster; of the second one it is `one_by_one`.
  static constexpr const char* fused = "fused";
  /// The values of the choice for a convolution that is also a matrix product.
  static constexpr const char *convolution = "convolution", *product = "product";

  /// Parses text made by to_text(). Throws InputError with the line number if the format is wrong
  /// or a line is damaged.
  static AlgorithmTable parse(std::string_view text);
  /// Parses the same, but leaves out damaged lines. Throws InputError if the first line is wrong.
  static AlgorithmTable parse_undamaged(std::string_view text);
  /// Returns the table as text: a first line that names the format, then one line for each problem
  /// in the order of the keys: checksum, problem and algorithm, separated by tabs.
  std::string to_text() const;

  /// Returns the algorithm of the problem, or null if it is unknown.
  const std::string* find(const std::string& problem) const;
  /// Sets the algorithm of a problem and replaces an earlier one.
  void set(const std::string& problem, const std::string& algorithm);
  /// Adds the problems of `others` that this table lacks. Known problems keep their algorithm.
  void add_missing(const AlgorithmTable& others);

  /// A problem that the program's own kernel computes, and why the library does not.
  struct OwnKernel {
    std::string problem, reason;
    bool operator==(const OwnKernel&) const = default;
  };
  /// Returns the problems with the value `own_kernel`, in the order of their keys. The log lists
  /// them.
  std::vector<OwnKernel> own_kernels() const;
  /// Returns the table without those problems: the choices that trials have made.
  AlgorithmTable without_own_kernels() const;

  std::size_t size() const { return entries_.size(); }
  bool operator==(const AlgorithmTable&) const = default;

 private:
  std::map<std::string, std::string> entries_;
};

}  // namespace trireme::ops
