// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::io {

/// Reads the union of boxes that do not overlap from a dataset of numbers. Elements arrive in the
/// row-major order of the dataset: for boxes side by side, a row of the first box, then the same
/// row of the next. Without elements it does nothing.
///
/// Converts to the requested type. Values out of range become the nearest value of that type, so
/// read a wider type and check. Chunks are decompressed in the calling thread; each call
/// decompresses every chunk that it needs once, so ask for whole rows of chunks. Thread-safe.
/// Throws InputError for a wrong range, a type that is not numeric, or a damaged file, Failure if
/// the disk fails.
void read_values(const File& file, const StoredDataset& dataset, std::span<const Hdf5Box> boxes,
                 Hdf5Number memory, void* out);
/// Reads the hyperslab [start, start + count).
void read_values(const File& file, const StoredDataset& dataset,
                 std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                 Hdf5Number memory, void* out);
/// Reads the whole dataset.
void read_values(const File& file, const StoredDataset& dataset, Hdf5Number memory, void* out);

/// Converts elements that were read as they are in the file. `dataset`: their type. `swapped`: they
/// have the other byte order than this machine.
void convert_values(const StoredDataset& dataset, const std::byte* stored, bool swapped,
                    std::int64_t count, Hdf5Number memory, std::byte* out);

/// An indexed file that is open for reading its values.
class Hdf5Reader {
 public:
  /// Throws InputError if the file cannot be opened, or has another size than its index.
  explicit Hdf5Reader(Hdf5Index index);
  explicit Hdf5Reader(std::shared_ptr<const Hdf5Index> index);

  const std::string& path() const { return index_->path(); }
  const Hdf5Index& index() const { return *index_; }
  FileStamp stamp() const { return file_.stamp(); }
  /// Reads values of one of the datasets; see read_values().
  template <class... Arguments>
  void read(const StoredDataset& dataset, Arguments&&... arguments) const {
    read_values(file_, dataset, std::forward<Arguments>(arguments)...);
  }
  /// Reads all values of a dataset, by its path in the file.
  void read_all(const std::string& object, Hdf5Number memory, void* out) const {
    read(index_->dataset(object), memory, out);
  }

 private:
  std::shared_ptr<const Hdf5Index> index_;
  File file_;
};

}  // namespace trireme::io
