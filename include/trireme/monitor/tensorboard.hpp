// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::monitor {

class AppendFile;

/// Writes a TensorBoard event file: TFRecord framing with masked CRC-32C and scalar summaries.
/// World rank 0 creates one; a default-constructed object writes nothing.
class TensorBoard {
 public:
  TensorBoard();
  /// Creates a new event file in `folder`, and the folder if it is missing. Throws Failure.
  explicit TensorBoard(const std::string& folder);
  ~TensorBoard();
  TensorBoard(TensorBoard&&) noexcept;
  TensorBoard& operator=(TensorBoard&&) noexcept;
  /// Appends one value of the curve `tag` at `step` in single precision (field simple_value).
  /// Throws Failure if more than 4 MiB could not be written.
  void write_scalar(const std::string& tag, std::int64_t step, double value);
  /// Creates the next event file if this one was removed or replaced, and returns whether it was.
  /// Throws Failure, also if the folder around the event files' folder is gone.
  bool reopen_if_removed();

 private:
  void write_record(const std::string& payload);
  std::string folder_;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace trireme::monitor
