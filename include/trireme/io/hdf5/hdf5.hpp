// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace trireme::io {

// This header writes HDF5 files. hdf5_index.hpp and hdf5_values.hpp read them: files are untrusted,
// and the HDF5 library opens them only in another process.

/// Initializes HDF5 before MPI and disables its exit handler. After a failed close on a broken disk
/// that handler would write to the disk again, while MPI shuts down. The owners of files close
/// them. Called once by main(). Throws Failure.
void initialize_hdf5();

/// Holds the process-wide lock of HDF5. HDF5 has global state, and most builds are not thread-safe,
/// so every call into it needs this lock. All functions below take it themselves. A thread that
/// holds it may take it again, to make several calls one unit.
class Hdf5Lock {
 public:
  Hdf5Lock();
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;
};

/// Owns one HDF5 identifier of any kind: file, group, dataset, property list. HDF5's hid_t has 64
/// bits since 1.10.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  explicit Hdf5Handle(std::int64_t id) : id_(id) {}
  ~Hdf5Handle();
  Hdf5Handle(Hdf5Handle&& other) noexcept;
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;

  std::int64_t id() const { return id_; }
  bool is_open() const { return id_ >= 0; }
  /// Closes the identifier. Throws Failure, since the last flush of a file may fail. The destructor
  /// ignores errors.
  void close();

 private:
  std::int64_t id_ = -1;
};

/// Type of the elements in memory.
enum class Hdf5Number : std::uint8_t {
  uint8,
  uint16,
  uint32,
  int32,
  int64,
  uint64,
  float16,  ///< written alone; it is read as its bits, or converted
  float32,
  float64
};
/// Returns the size of one element in bytes.
std::int64_t size_of(Hdf5Number number);

/// A scalar attribute. Integers that fit are int64; larger unsigned integers are uint64.
using Hdf5Value = std::variant<std::int64_t, std::uint64_t, double, std::string>;

/// A hyperslab: the elements [start, start + count) in each dimension.
struct Hdf5Box {
  std::vector<std::int64_t> start, count;

  std::int64_t elements() const;
};

/// A dataset that is open for writing.
class Hdf5Dataset {
 public:
  /// `location`: "file.h5: /images", for messages.
  Hdf5Dataset(Hdf5Handle handle, std::string location, std::vector<std::int64_t> shape,
              bool collective);

  /// Returns the offset of the first byte from the start of the file, including the user block; -1
  /// if HDF5 does not report it.
  std::int64_t offset() const;
  std::int64_t elements() const;
  /// Writes the hyperslab. Collective if several ranks opened the file; a rank without data passes
  /// a count with a zero in it. Throws Failure.
  void write(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
             Hdf5Number memory, const void* data) const;
  /// Writes a union of boxes that do not overlap, in the row-major order of the dataset: for boxes
  /// side by side, a row of the first box, then the same row of the next. Collective if several
  /// ranks opened the file; a rank without data passes no boxes. Throws Failure.
  void write(std::span<const Hdf5Box> boxes, Hdf5Number memory, const void* data) const;
  /// Writes the whole dataset.
  void write_all(Hdf5Number memory, const void* data) const;

 private:
  Hdf5Handle handle_;
  std::string location_;
  std::vector<std::int64_t> shape_;
  bool collective_ = false;
};

/// Options of Hdf5File::create().
struct Hdf5CreateOptions {
  /// Bytes reserved before the HDF5 part: 0, or a power of two >= 512.
  std::int64_t user_block_bytes = 0;
  /// Datasets of at least this many bytes start at multiples of it. 0: no alignment.
  std::int64_t alignment = 0;
};

/// An HDF5 file of this program that is open for writing. Object paths may start with a slash or
/// not ("model/fc.bias"); "/" is the root group. Every error is a Failure with path and object.
///
/// In a file that several ranks opened every write is collective.
class Hdf5File {
 public:
  /// Creates a file and replaces an existing one. Called by one process, without MPI. Throws
  /// InputError if HDF5_USE_FILE_LOCKING asks for locks that the file system lacks, else Failure.
  static Hdf5File create(const std::string& path, const Hdf5CreateOptions& creation);
  /// Opens a file of this program on all ranks, to write values into its datasets. Nothing may be
  /// created in it. `communicator` points to the MPI_Comm of the ranks. Collective. Throws Failure.
  static Hdf5File open_to_write(const std::string& path, const void* communicator);

  const std::string& path() const { return path_; }

  /// Opens a dataset to write values into it.
  Hdf5Dataset dataset(const std::string& object) const;
  /// Creates a group and its missing parents. Does nothing if the group exists.
  void create_group(const std::string& group);
  /// Creates a contiguous dataset and missing parent groups. Space is allocated at once and not
  /// filled. Throws Failure.
  Hdf5Dataset create_dataset(const std::string& object, Hdf5Number type,
                             std::span<const std::int64_t> shape);
  /// Writes a dataset of UTF-8 strings of fixed length.
  void write_strings(const std::string& object, const std::vector<std::string>& strings);
  /// Writes or replaces a scalar attribute. Strings have variable length, so that h5py returns them
  /// as str.
  void write_attribute(const std::string& object, const std::string& name, const Hdf5Value& value);

  /// Flushes the file to the operating system. Throws Failure.
  void flush();
  /// Closes the file. Throws Failure. Destroy all Hdf5Datasets of the file first.
  void close();

 private:
  Hdf5File(Hdf5Handle handle, std::string path, bool collective);
  void create_groups_above(const std::string& object);
  std::string location_of(const std::string& object) const;

  Hdf5Handle handle_;
  std::string path_;
  bool collective_ = false;
};

}  // namespace trireme::io
