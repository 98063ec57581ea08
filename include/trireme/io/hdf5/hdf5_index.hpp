// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/bytes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/io/hdf5/hdf5.hpp"

namespace trireme::io {

namespace detail {
struct ReportedAttribute;
struct ReportedObject;
}  // namespace detail

// Reading begins with the index of a file: its objects, their attributes, and the place of every
// value. Values are then read by read_values() (hdf5_values.hpp), with positioned reads.
//
// The HDF5 library itself can crash, loop or exhaust memory on a damaged or hostile file. So a
// child process makes the index, under limits of memory and time, and writes it to a pipe. This
// process checks it like any untrusted input. If the child dies, the user sees an error message
// instead of a crash (docs/design/decisions/0011).

/// Place and stored size of one chunk of a dataset.
struct Hdf5Chunk {
  std::int64_t offset = -1;  ///< from the start of the file; -1: the chunk was never written
  std::uint32_t bytes = 0;
  std::uint32_t skipped_filters = 0;  ///< bit i: filter i was not applied to this chunk
};

/// The filters that read_values() can undo.
enum class Hdf5Filter : std::uint8_t { deflate, shuffle };

/// Type, shape and storage of a dataset. All extents and places were compared with the size of the
/// file.
struct StoredDataset {
  /// Kind of the elements. `integer` and `real` can be read: integers of 1, 2, 4 or 8 bytes, IEEE
  /// numbers of 2, 4 or 8 bytes.
  enum class Kind : std::uint8_t { integer, real, text, other };
  enum class Storage : std::uint8_t { contiguous, chunked, compact };

  std::string location;  ///< "file.h5: /images", for messages
  Kind kind = Kind::other;
  std::int64_t element_bytes = 0;
  bool is_signed = false;
  bool native_order = false;        ///< the file has this machine's byte order
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  Storage storage = Storage::contiguous;
  /// Contiguous: offset of the first byte from the start of the file, including the user block. -1
  /// without elements.
  std::int64_t offset = -1;
  /// Chunked: extents of one chunk, filters in the order of writing, and all chunks in row-major
  /// order of their places in the dataset.
  std::vector<std::int64_t> chunk;
  std::vector<Hdf5Filter> filters;
  std::vector<Hdf5Chunk> chunks;
  std::string values;  ///< compact: all elements as they are stored

  std::int64_t elements() const;
  std::int64_t bytes() const { return elements() * element_bytes; }
  /// Returns the bytes that the elements take in the file.
  std::int64_t stored_bytes() const;
  bool is_number() const { return kind == Kind::integer || kind == Kind::real; }

  /// Appends the dataset to a message, or reads it from a message of this program.
  void put(ByteWriter& message) const;
  static StoredDataset get(ByteReader& message);
};

/// The index of one HDF5 file. Object paths may start with a slash or not ("model/fc.bias"); "/" is
/// the root group. Soft links within the file are followed.
///
/// Text from the file in messages is printable and short.
class Hdf5Index {
 public:
  /// Parses and checks the report of the child process. Throws InputError that names the file: the
  /// file cannot be read, or contains a metadata cache image. A fault of a single object is
  /// reported when that object is used: also that it leads out of the file (a link, a virtual
  /// dataset, external storage).
  Hdf5Index(std::string path, std::int64_t file_bytes, std::string report);
  ~Hdf5Index();
  Hdf5Index(Hdf5Index&&) noexcept;
  Hdf5Index& operator=(Hdf5Index&&) noexcept;

  /// Throws InputError if any object leads out of the file. No file of this program has such.
  void refuse_places_outside() const;

  const std::string& path() const { return path_; }
  std::int64_t file_bytes() const { return file_bytes_; }
  /// Returns the report, to make the same index on another rank.
  const std::string& report() const { return report_; }

  /// Returns whether the object (group or dataset) exists.
  bool has(const std::string& object) const;
  /// Returns the full paths, without the leading slash, of all datasets below a group, sorted.
  /// Throws InputError if the group is missing or holds something else.
  std::vector<std::string> list_datasets(const std::string& group) const;
  /// Returns a dataset. Throws InputError if it is missing, or if the file cannot hold it.
  const StoredDataset& dataset(const std::string& object) const;
  /// Returns the strings of a one-dimensional dataset. Throws InputError.
  const std::vector<std::string>& strings(const std::string& object) const;

  bool has_attribute(const std::string& object, const std::string& name) const;
  /// Returns a scalar attribute, or one with a single element: an integer of up to 64 bits, a real
  /// number, or a string of fixed or variable length. Returns none if it is missing. Throws
  /// InputError for another type.
  std::optional<Hdf5Value> attribute(const std::string& object, const std::string& name) const;
  std::map<std::string, Hdf5Value> attributes(const std::string& object) const;
  /// Returns an attribute of one type, like the next three functions. Throws InputError if it is
  /// missing or of another type. attribute_double() also accepts whole numbers; attribute_int()
  /// refuses values of 2^63 or more.
  std::int64_t attribute_int(const std::string& object, const std::string& name) const;
  std::uint64_t attribute_uint(const std::string& object, const std::string& name) const;
  double attribute_double(const std::string& object, const std::string& name) const;
  std::string attribute_string(const std::string& object, const std::string& name) const;
  /// Returns the strings of an attribute. Throws InputError.
  const std::vector<std::string>& attribute_strings(const std::string& object,
                                                    const std::string& name) const;

 private:
  struct Object;
  void add(detail::ReportedObject reported);
  std::string resolve(const std::string& object) const;
  const Object* find(const std::string& object) const;
  const Object& get(const std::string& object) const;
  const detail::ReportedAttribute* find_attribute(const std::string& object,
                                                  const std::string& name) const;
  std::string location_of(const std::string& object) const;
  std::string location_of(const std::string& object, const std::string& attribute) const;

  std::string path_;
  std::int64_t file_bytes_;
  std::string report_;
  std::string outside_;  ///< the first object that leads out of the file, and how
  /// By path without the leading slash; "" is the root group.
  std::map<std::string, std::unique_ptr<Object>> objects_;
};

/// Sets the command that starts the child process: program and first arguments. The paths are
/// appended. Called once by main(). Without it index_hdf5() opens the files in this process, as
/// unit tests do. A child that neither computes nor reports for `idle_seconds` is ended.
void set_hdf5_index_command(std::vector<std::string> command, double idle_seconds = 120);

/// Makes the index of each file and passes it to `take(i, index)`, in any order. Up to four child
/// processes work beside each other, at most one for each core of this process, with up to 256
/// files each.
///
/// They are started by posix_spawn(), which copies no page of this process, so it is safe under MPI
/// with pinned memory. Throws InputError that names the first file that cannot be read, or that
/// crashed its process or exceeded a limit; also what `take` throws. Throws Failure if no process
/// can be started, or if one makes no progress.
void index_hdf5(std::span<const std::string> paths,
                const std::function<void(std::size_t, Hdf5Index)>& take);
/// Returns the index of one file.
Hdf5Index index_hdf5(const std::string& path);

/// Returns the index of a file that this program has just written. It is made in this process.
Hdf5Index index_own_hdf5(const std::string& path);

/// Runs in the child process: sets the limits and reports each file to a pipe. Returns the
/// exit code of the process: wrong_input if a file exceeds the memory limit.
ExitCode run_hdf5_indexing(const std::vector<std::string>& paths);

}  // namespace trireme::io
