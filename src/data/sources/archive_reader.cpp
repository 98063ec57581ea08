// SPDX-License-Identifier: Apache-2.0
//
// Reads packed files with libarchive: tar archives, and files of any bytes that decompress()
// unpacks. Compressed data are untrusted: the bytes that they unpack to are limited.
#include "archive_reader.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "gzip_reader.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/data/sources/unpacking.hpp"

namespace trireme::data {

ArchiveReader::ArchiveReader(const io::File& file, std::int64_t offset, std::int64_t bytes,
                             std::string place, Format format)
    : file_(file),
      begin_(offset),
      file_offset_(offset),
      end_(offset + bytes),
      name_(std::move(place)),
      archive_(archive_read_new()),
      // Images between the headers of a plain archive are skipped if they are larger.
      buffer_(format == Format::tar ? 1 << 14 : 1 << 18) {
  ensure(archive_ != nullptr, "libarchive: out of memory");
  if (format == Format::tar)
    archive_read_support_format_tar(get());
  else
    archive_read_support_format_raw(get());
  for (const auto support : {archive_read_support_filter_gzip, archive_read_support_filter_bzip2,
                             archive_read_support_filter_xz, archive_read_support_filter_zstd,
                             archive_read_support_filter_lz4})
    if (needs_no_program(support)) support(get());
  archive_read_set_read_callback(get(), read_next);
  archive_read_set_skip_callback(get(), skip);
  archive_read_set_callback_data(get(), this);
  // As `cat a.tar b.tar` makes them; otherwise the second one would be left out in silence.
  if (format == Format::tar) archive_read_set_options(get(), "read_concatenated_archives");
  check(archive_read_open1(get()));
  // The last filter only reads the file.
  const int forms = archive_filter_count(get()) - 1;
  validate(forms <= 1, "{}: is packed twice: the {} file holds {} {} file; unpack it once", name_,
           filter_name(forms - 1), filter_name(0) == "xz" ? "an" : "a", filter_name(0));
}

archive_entry* ArchiveReader::next() {
  archive_entry* entry = nullptr;
  const int status = archive_read_next_header(get(), &entry);
  if (status == ARCHIVE_EOF) return nullptr;
  check(status);
  return entry;
}

std::int64_t ArchiveReader::read(void* out, std::int64_t bytes) {
  const la_ssize_t got = archive_read_data(get(), out, static_cast<std::size_t>(bytes));
  if (got < 0) check(static_cast<int>(got));
  return got;
}

void ArchiveReader::check_end() const {
  if (!compressed()) return;
  std::int64_t at = begin_ + archive_filter_bytes(get(), -1);
  for (std::vector<char> block(1 << 16); at < end_;) {
    const std::int64_t part = std::min(end_ - at, std::ssize(block));
    file_.read_at(at, block.data(), part);
    const auto other =
        std::find_if(block.begin(), block.begin() + part, [](char byte) { return byte != 0; });
    const std::int64_t zeros = other - block.begin();
    validate(zeros == part,
             "{}: is damaged: the bytes from {} on, after the end of compressed data, are neither "
             "such data nor zeros",
             name_, at + zeros);
    at += part;
  }
}

std::string_view ArchiveReader::filter_name(int filter) const {
  const char* const name = archive_filter_name(get(), filter);
  return name == nullptr ? "packed" : name;
}

bool ArchiveReader::needs_no_program(int (*support)(archive*)) {
  const std::unique_ptr<archive, ArchiveDeleter> trial(archive_read_new());
  return trial != nullptr && support(trial.get()) == ARCHIVE_OK;
}

void ArchiveReader::check(int status) const {
  if (disk_error_ != nullptr) std::rethrow_exception(disk_error_);
  if (status == ARCHIVE_OK || status == ARCHIVE_WARN) return;
  const char* const reason = archive_error_string(get());
  throw InputError(fmt::format("{}: cannot be read as an archive: {}", name_,
                               printable(reason == nullptr ? "unknown error" : reason)));
}

la_ssize_t ArchiveReader::read_next(archive*, void* self, const void** out) {
  auto& reader = *static_cast<ArchiveReader*>(self);
  const std::int64_t part =
      std::min(reader.end_ - reader.file_offset_, static_cast<std::int64_t>(reader.buffer_.size()));
  *out = reader.buffer_.data();
  try {
    if (reader.compressed())
      check_unpacked_bytes(reader.file_.path(), reader.file_.size(), reader.position());
    reader.file_.read_at(reader.file_offset_, reader.buffer_.data(), part);
  } catch (...) {
    // No exception may pass through libarchive.
    reader.disk_error_ = std::current_exception();
    return ARCHIVE_FATAL;
  }
  reader.file_offset_ += part;
  return part;
}

la_int64_t ArchiveReader::skip(archive*, void* self, la_int64_t bytes) {
  auto& reader = *static_cast<ArchiveReader*>(self);
  const std::int64_t part = std::clamp<std::int64_t>(bytes, 0, reader.end_ - reader.file_offset_);
  reader.file_offset_ += part;
  return part;
}

void decompress(const std::string& path, const std::string& out_path) {
  io::File out(out_path, io::File::Mode::create);
  std::vector<std::byte> piece(1 << 20);
  std::int64_t at = 0;
  const auto copy = [&](auto&& read) {
    while (const std::int64_t got = read()) {
      out.write_at(at, piece.data(), got);
      at += got;
    }
  };
  GzipReader gzip(path);
  if (gzip.compressed()) {  // libarchive does not compare gzip's checksum
    copy([&] { return static_cast<std::int64_t>(gzip.read(piece)); });
  } else {
    const io::File file(path, io::File::Mode::read);
    ArchiveReader reader(file, 0, file.size(), path, ArchiveReader::Format::any_bytes);
    if (reader.next() != nullptr)
      copy([&] { return reader.read(piece.data(), std::ssize(piece)); });
    reader.check_end();
  }
  out.close();
}

}  // namespace trireme::data
