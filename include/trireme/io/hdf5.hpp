#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace trireme::io {

/// HDF5 is one state machine a process and most builds of it know no threads: every call into it
/// holds this lock. All functions below take it themselves; it may be taken again by the thread
/// that has it, so several calls can be made one unit.
class Hdf5Lock {
 public:
  Hdf5Lock();
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;
};

/// Owns one HDF5 identifier of any kind (file, group, dataset, property list ...). HDF5's hid_t is
/// 64-bit since 1.10.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  explicit Hdf5Handle(std::int64_t id) : id_(id) {}
  ~Hdf5Handle();
  Hdf5Handle(Hdf5Handle&& other) noexcept;
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;

  std::int64_t id() const { return id_; }
  bool is_open() const { return id_ >= 0; }
  /// Closes now. Throws Failure (a file's last flush may fail), where the destructor is silent.
  void close();

 private:
  std::int64_t id_ = -1;
};

/// Type of elements in memory.
enum class Hdf5Number : std::uint8_t {
  uint8,
  uint16,
  uint32,
  int32,
  int64,
  uint64,
  float32,
  float64
};
std::int64_t size_of(Hdf5Number number);

/// A scalar attribute: integers that fit are int64, larger unsigned ones uint64.
using Hdf5Value = std::variant<std::int64_t, std::uint64_t, double, std::string>;

/// What a dataset is in the file.
struct Hdf5Description {
  enum class Kind : std::uint8_t { integer, real, text, other };
  Kind kind = Kind::other;
  std::int64_t element_bytes = 0;
  bool is_signed = false;
  bool native_order = false;        ///< bytes of an element stand as in this machine's memory
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::int64_t bytes = 0;           ///< of all elements, uncompressed
  std::int64_t offset = -1;         ///< contiguous storage: its first byte, counted from the file's
                                    ///< beginning (user block included); else -1
  std::vector<std::int64_t> chunk;  ///< chunked storage: extents of a chunk; else empty

  std::int64_t elements() const;
};

/// A hyperslab: elements [start, start + count) along each dimension.
struct Hdf5Box {
  std::vector<std::int64_t> start, count;

  std::int64_t elements() const;
};

/// An open dataset. Reads convert to the memory type asked for, as HDF5 does (values out of range
/// are clamped: read wider and check).
class Hdf5Dataset {
 public:
  Hdf5Dataset(Hdf5Handle handle, std::string location, Hdf5Description description,
              bool collective);

  const Hdf5Description& description() const { return description_; }
  /// "file.h5: /images", for messages.
  const std::string& location() const { return location_; }
  /// Reads the hyperslab [start, start + count) in row-major order. Throws InputError.
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            Hdf5Number memory, void* out) const;
  /// Reads the union of boxes that do not overlap, its elements in the dataset's row-major order
  /// (of boxes side by side: a row of the first, that row of the next, ...). No boxes, or empty
  /// ones: nothing. Throws InputError.
  void read(std::span<const Hdf5Box> boxes, Hdf5Number memory, void* out) const;
  /// Reads everything.
  void read_all(Hdf5Number memory, void* out) const;
  /// Writes the hyperslab; in a file made by several ranks this is collective, and a rank without a
  /// part gives a count that holds a 0. Throws Failure.
  void write(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
             Hdf5Number memory, const void* data) const;
  /// Writes a union of boxes, as the read of that form; collective as the other write, where a rank
  /// without a part gives no boxes.
  void write(std::span<const Hdf5Box> boxes, Hdf5Number memory, const void* data) const;
  void write_all(Hdf5Number memory, const void* data) const;

 private:
  Hdf5Handle handle_;
  std::string location_;
  Hdf5Description description_;
  bool collective_ = false;
};

/// How a file is made.
struct Hdf5CreateOptions {
  const void* communicator = nullptr;  ///< points to the MPI_Comm of all ranks that make it
                                       ///< together; null: one process, no MPI
  std::int64_t user_block_bytes = 0;   ///< 0, or a power of two >= 512: room before the HDF5 part
  std::int64_t alignment =
      0;  ///< datasets of at least this many bytes begin at multiples of it; 0: packed
};

/// An HDF5 file. Object paths may be written with or without the leading slash ("model/fc.bias");
/// "/" is the root.
///
/// Reading trusts nothing: links that leave the file, virtual and externally stored datasets,
/// extents that the file cannot hold are refused (InputError naming file and object) before
/// anything of their size is allocated. In a file made by several ranks every creating or writing
/// call is collective, with the same arguments but for the hyperslabs.
class Hdf5File {
 public:
  /// Opens for reading, by this process alone, without file locks. A user block is found by itself.
  /// Throws InputError.
  static Hdf5File open(const std::string& path);
  /// Makes a new file, replacing one of that name. Throws Failure.
  static Hdf5File create(const std::string& path, const Hdf5CreateOptions& creation);

  const std::string& path() const { return path_; }

  /// Whether there is an object (group or dataset). Throws InputError for a link that leaves the
  /// file.
  bool has(const std::string& object) const;
  bool is_group(const std::string& object) const;
  /// Names in a group, sorted.
  std::vector<std::string> list(const std::string& group) const;
  /// Full paths (without the leading slash) of all datasets below a group, sorted. Throws
  /// InputError beyond 16 levels or a million of them.
  std::vector<std::string> list_datasets(const std::string& group) const;

  Hdf5Dataset dataset(const std::string& object) const;
  Hdf5Description describe(const std::string& object) const {
    return dataset(object).description();
  }

  /// A scalar attribute (or one of one element): integers of any width, reals, fixed and variable
  /// strings. None where it is missing. Throws InputError where it is of another type.
  std::optional<Hdf5Value> attribute(const std::string& object, const std::string& name) const;
  std::map<std::string, Hdf5Value> attributes(const std::string& object) const;
  std::vector<std::string> attribute_names(const std::string& object) const;
  /// The same, of one type: throws InputError where it is missing or of another type (an int64 must
  /// fit; a whole number is read as a double).
  std::int64_t attribute_int(const std::string& object, const std::string& name) const;
  std::uint64_t attribute_uint(const std::string& object, const std::string& name) const;
  double attribute_double(const std::string& object, const std::string& name) const;
  std::string attribute_string(const std::string& object, const std::string& name) const;
  bool has_attribute(const std::string& object, const std::string& name) const;
  /// Strings of a one-dimensional dataset, or of an attribute.
  std::vector<std::string> read_strings(const std::string& object) const;
  std::vector<std::string> attribute_strings(const std::string& object,
                                             const std::string& name) const;

  void create_group(const std::string& group);  ///< with those above it, where they are missing;
                                                ///< one that is there stays
  /// A contiguous dataset, allocated at once, not filled: the groups above it are made where they
  /// are missing.
  Hdf5Dataset create_dataset(const std::string& object, Hdf5Number type,
                             std::span<const std::int64_t> shape);
  /// A dataset of fixed-length UTF-8 strings.
  void write_strings(const std::string& object, const std::vector<std::string>& strings);
  /// Strings are written with variable length, so that h5py gives them as str.
  void write_attribute(const std::string& object, const std::string& name, const Hdf5Value& value);

  void flush();
  /// Closes now. Throws Failure. Datasets must be gone before.
  void close();

 private:
  Hdf5File(Hdf5Handle handle, std::string path, bool collective, std::int64_t file_bytes);
  Hdf5Handle open_object(const std::string& object) const;
  void create_groups_above(const std::string& object);
  std::string resolve(const std::string& object, int depth) const;
  std::string location_of(const std::string& object) const;

  Hdf5Handle handle_;
  std::string path_;
  bool collective_ = false;
  std::int64_t file_bytes_ = -1;  ///< of a file open for reading; extents are checked against it
};

}  // namespace trireme::io
