// SPDX-License-Identifier: Apache-2.0
//
// Writes TensorBoard event files without TensorFlow: encodes protocol buffers by hand and frames
// them as TFRecords.
//
// A record is: length (8 bytes), masked CRC of the length (4), payload, masked CRC of the payload
// (4). The payload is an Event message. The constructor writes the version event;
// train/records/recorder.cpp calls write_scalar() for each curve and step.

#include "trireme/monitor/tensorboard.hpp"

#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "append_file.hpp"
#include "crc32c.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"

namespace trireme::monitor {
namespace {

/// Appends a value in little-endian byte order, as TFRecord and protocol buffers use.
template <class T>
void put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

/// Wire types of protocol buffers (encoding guide). The key of a field is number * 8 + wire type.
enum class WireType : unsigned { varint = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, unsigned field, WireType wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}

void put_bytes(std::string& out, unsigned field, const std::string& bytes) {
  put_key(out, field, WireType::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

/// Returns the first fields of the message Event { double wall_time = 1; int64 step = 2; string
/// file_version = 3; Summary summary = 5; }
std::string event_head(std::int64_t step) {
  std::string event;
  put_key(event, 1, WireType::eight_bytes);
  put(event, wall_seconds());
  put_key(event, 2, WireType::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

/// Masks a checksum as TensorFlow's crc32c.h does: rotates it and adds a constant. TFRecord does so
/// because data may contain checksums themselves.
std::uint32_t mask_crc(std::uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

}  // namespace

TensorBoard::TensorBoard(const std::string& folder) : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  ensure(!error, "cannot create the folder {}: {}", folder, error.message());
  const std::string base = fmt::format("{}/events.out.tfevents.{:010d}.{}", folder,
                                       static_cast<std::int64_t>(wall_seconds()), host_name());
  // Two starts within a second get different names. An event file is never continued, because a
  // reader may have passed its end.
  file_ = AppendFile::open(base, PlainFileUse::append_new);
  for (int attempt = 1; !file_ && attempt < 1000; ++attempt)
    file_ = AppendFile::open(fmt::format("{}.{}", base, attempt), PlainFileUse::append_new);
  ensure(file_ != nullptr, "cannot create {}: it exists, and so do 999 numbered files beside it",
         base);
  std::string event = event_head(0);
  put_bytes(event, 3, "brain.Event:2");
  write_record(event);
}

TensorBoard::TensorBoard() = default;
TensorBoard::~TensorBoard() = default;
TensorBoard::TensorBoard(TensorBoard&&) noexcept = default;
TensorBoard& TensorBoard::operator=(TensorBoard&&) noexcept = default;

void TensorBoard::write_scalar(const std::string& tag, std::int64_t step, double value) {
  if (!file_) return;
  std::string entry;  // Summary.Value { string tag = 1; float simple_value = 2; }
  put_bytes(entry, 1, tag);
  put_key(entry, 2, WireType::four_bytes);
  put(entry, static_cast<float>(value));
  std::string summary;  // Summary { repeated Value value = 1; }
  put_bytes(summary, 1, entry);
  std::string event = event_head(step);
  put_bytes(event, 5, summary);
  write_record(event);
}

bool TensorBoard::reopen_if_removed() {
  if (!file_ || !file_->is_removed()) return false;
  const std::filesystem::path around = std::filesystem::path(folder_).parent_path();
  std::error_code ignored;
  ensure(around.empty() || std::filesystem::is_directory(around, ignored),
         "cannot create the folder {}: {} is missing", folder_, around.string());
  *this = TensorBoard(folder_);
  return true;
}

void TensorBoard::write_record(const std::string& payload) {
  std::string frame;
  put(frame, static_cast<std::uint64_t>(payload.size()));
  put(frame, mask_crc(crc32c(frame)));
  frame += payload;
  put(frame, mask_crc(crc32c(payload)));
  file_->append(frame);
}

}  // namespace trireme::monitor
