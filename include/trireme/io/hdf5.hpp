#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace trireme::io {

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
  float32,
  float64
};
/// Returns the size of one element in bytes.
std::int64_t size_of(Hdf5Number number);

/// A scalar attribute. Integers that fit are int64; larger unsigned integers are uint64.
using Hdf5Value = std::variant<std::int64_t, std::uint64_t, double, std::string>;

/// Type, shape and storage of a dataset in the file.
struct Hdf5Description {
  enum class Kind : std::uint8_t { integer, real, text, other };
  Kind kind = Kind::other;
  std::int64_t element_bytes = 0;
  bool is_signed = false;
  bool native_order = false;        ///< the file has this machine's byte order
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  std::int64_t bytes = 0;           ///< uncompressed size of all elements
  /// Contiguous storage: offset of the first byte from the start of the file, including the user
  /// block. Otherwise -1.
  std::int64_t offset = -1;
  /// Chunked storage: extents of one chunk. Otherwise empty.
  std::vector<std::int64_t> chunk;

  std::int64_t elements() const;
};

/// A hyperslab: the elements [start, start + count) in each dimension.
struct Hdf5Box {
  std::vector<std::int64_t> start, count;

  std::int64_t elements() const;
};

/// An open dataset. Reads convert to the requested type as HDF5 does: values out of range are
/// clamped, so read a wider type and check.
class Hdf5Dataset {
 public:
  Hdf5Dataset(Hdf5Handle handle, std::string location, Hdf5Description description,
              bool collective);

  const Hdf5Description& description() const { return description_; }
  /// Returns "file.h5: /images", for messages.
  const std::string& location() const { return location_; }
  /// Reads the hyperslab [start, start + count) into `out` in row-major order. Throws InputError
  /// for a wrong range, a type that is not numeric, or a damaged file.
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            Hdf5Number memory, void* out) const;
  /// Reads the union of boxes that do not overlap. Elements arrive in the row-major order of the
  /// dataset: for boxes side by side, a row of the first box, then the same row of the next.
  /// Without elements it does nothing. Throws InputError.
  void read(std::span<const Hdf5Box> boxes, Hdf5Number memory, void* out) const;
  /// Reads the whole dataset.
  void read_all(Hdf5Number memory, void* out) const;
  /// Writes the hyperslab. Collective if several ranks opened the file; a rank without data passes
  /// a count with a zero in it. Throws Failure.
  void write(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
             Hdf5Number memory, const void* data) const;
  /// Writes a union of boxes in the element order of the corresponding read(). Collective if
  /// several ranks opened the file; a rank without data passes no boxes. Throws Failure.
  void write(std::span<const Hdf5Box> boxes, Hdf5Number memory, const void* data) const;
  /// Writes the whole dataset.
  void write_all(Hdf5Number memory, const void* data) const;

 private:
  Hdf5Handle handle_;
  std::string location_;
  Hdf5Description description_;
  bool collective_ = false;
};

/// Options of Hdf5File::create().
struct Hdf5CreateOptions {
  /// Bytes reserved before the HDF5 part: 0, or a power of two >= 512.
  std::int64_t user_block_bytes = 0;
  /// Datasets of at least this many bytes start at multiples of it. 0: no alignment.
  std::int64_t alignment = 0;
};

/// An HDF5 file. Object paths may start with a slash or not ("model/fc.bias"); "/" is the root
/// group.
///
/// Reading treats every file as untrusted. Links to other files, virtual datasets, external
/// storage, and extents larger than the file can hold are refused with an InputError that names
/// file and object, before memory of their size is allocated.
///
/// In a file that several ranks opened to write every write is collective.
class Hdf5File {
 public:
  /// Opens a file for reading by this process alone, without file locks. Finds a user block by
  /// itself. Throws InputError.
  static Hdf5File open(const std::string& path);
  /// Creates a file and replaces an existing one. Called by one process, without MPI. Throws
  /// Failure.
  static Hdf5File create(const std::string& path, const Hdf5CreateOptions& creation);
  /// Opens a file of this program on all ranks, to write values into its datasets. Nothing may be
  /// created in it. `communicator` points to the MPI_Comm of the ranks. Collective. Throws Failure.
  static Hdf5File open_to_write(const std::string& path, const void* communicator);

  const std::string& path() const { return path_; }

  /// Returns whether the object (group or dataset) exists. Throws InputError for a link to another
  /// file.
  bool has(const std::string& object) const;
  /// Returns whether the object exists and is a group.
  bool is_group(const std::string& object) const;
  /// Returns the names in a group, sorted. Throws InputError if the group is missing.
  std::vector<std::string> list(const std::string& group) const;
  /// Returns the full paths, without the leading slash, of all datasets below a group, sorted.
  /// Throws InputError beyond 16 levels or one million objects.
  std::vector<std::string> list_datasets(const std::string& group) const;

  /// Opens a dataset and checks that the file can hold it. Throws InputError.
  Hdf5Dataset dataset(const std::string& object) const;
  Hdf5Description describe(const std::string& object) const {
    return dataset(object).description();
  }

  /// Returns a scalar attribute, or one with a single element: an integer of up to 64 bits, a real
  /// number, or a string of fixed or variable length. Returns none if it is missing. Throws
  /// InputError for another type.
  std::optional<Hdf5Value> attribute(const std::string& object, const std::string& name) const;
  std::map<std::string, Hdf5Value> attributes(const std::string& object) const;
  std::vector<std::string> attribute_names(const std::string& object) const;
  /// Returns an attribute of one type, like the next three functions. Throws InputError if it is
  /// missing or of another type. attribute_double() also accepts whole numbers; attribute_int()
  /// refuses values of 2^63 or more.
  std::int64_t attribute_int(const std::string& object, const std::string& name) const;
  std::uint64_t attribute_uint(const std::string& object, const std::string& name) const;
  double attribute_double(const std::string& object, const std::string& name) const;
  std::string attribute_string(const std::string& object, const std::string& name) const;
  bool has_attribute(const std::string& object, const std::string& name) const;
  /// Returns the strings of a one-dimensional dataset. Throws InputError.
  std::vector<std::string> read_strings(const std::string& object) const;
  /// Returns the strings of an attribute. Throws InputError.
  std::vector<std::string> attribute_strings(const std::string& object,
                                             const std::string& name) const;

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
  Hdf5File(Hdf5Handle handle, std::string path, bool collective, std::int64_t file_bytes);
  Hdf5Handle open_object(const std::string& object) const;
  void create_groups_above(const std::string& object);
  std::string resolve(const std::string& object, int depth) const;
  std::string location_of(const std::string& object) const;

  Hdf5Handle handle_;
  std::string path_;
  bool collective_ = false;
  /// Size of a file open for reading; extents are checked against it.
  std::int64_t file_bytes_ = -1;
};

}  // namespace trireme::io
