#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::monitor {

class AppendFile;

/// A TensorBoard event file (TFRecord framing with masked CRC32C, scalar summaries). A default-made
/// one writes nothing.
class TensorBoard {
 public:
  TensorBoard();
  /// Makes a new event file in `folder` (created where missing). Throws Failure.
  explicit TensorBoard(const std::string& folder);
  ~TensorBoard();
  TensorBoard(TensorBoard&&) noexcept;
  TensorBoard& operator=(TensorBoard&&) noexcept;
  /// One value of the curve `tag` at `step`; kept in single precision (the format's simple_value).
  /// Throws Failure.
  void write_scalar(const std::string& tag, std::int64_t step, double value);

 private:
  void write_record(const std::string& payload);
  std::unique_ptr<AppendFile> file_;
};

}  // namespace trireme::monitor
