// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <archive.h>
#include <archive_entry.h>

#include "trireme/io/file.hpp"

namespace trireme::data {

/// A part of a file that libarchive reads from front to back.
class ArchiveReader {
 public:
  enum class Format : std::uint8_t { tar, any_bytes };
  /// Reads `bytes` bytes from `offset` on. Throws InputError if it is no archive.
  ArchiveReader(const io::File& file, std::int64_t offset, std::int64_t bytes, std::string place,
                Format format);

  archive* get() const { return archive_.get(); }
  bool compressed() const { return archive_filter_code(get(), 0) != ARCHIVE_FILTER_NONE; }
  /// Returns the next entry; null at the end.
  archive_entry* next();
  /// Reads up to `bytes` bytes of the entry; returns fewer only at its end.
  std::int64_t read(void* out, std::int64_t bytes);
  /// Throws InputError if bytes other than zeros follow the compressed data. To be called at the
  /// end. libarchive's filters end in silence where the beginning of a later part is damaged.
  void check_end() const;
  /// Returns the position in the decompressed content, which after next() is the entry's first
  /// byte.
  std::int64_t position() const { return archive_filter_bytes(get(), 0); }

 private:
  struct ArchiveDeleter {
    void operator()(archive* reader) const { archive_read_free(reader); }
  };

  /// Returns the name of a filter; filter 0 unpacks the archive itself.
  std::string_view filter_name(int filter) const;
  /// Returns whether this libarchive decompresses without another program.
  static bool needs_no_program(int (*support)(archive*));
  /// Throws InputError unless a call succeeded or only warned.
  void check(int status) const;
  // Called by libarchive.
  static la_ssize_t read_next(archive*, void* self, const void** out);
  static la_int64_t skip(archive*, void* self, la_int64_t bytes);

  const io::File& file_;
  std::int64_t begin_, file_offset_, end_;
  std::string name_;
  std::unique_ptr<archive, ArchiveDeleter> archive_;
  std::vector<char> buffer_;
  std::exception_ptr disk_error_;
};

}  // namespace trireme::data
