// SPDX-License-Identifier: Apache-2.0
//
// Creates HDF5 files and writes datasets, strings and attributes by one process, and values of
// existing datasets collectively by several ranks. HDF5 lays out a file differently if several
// ranks create it, so one process always does.
//
// Equal input gives equal bytes: object times are disabled, and space is allocated when a dataset
// is created. Checkpoint writers and dataset converters call these functions; all take Hdf5Lock.
// Every error is a Failure with path, object and HDF5's description, except for file systems
// without locks: open_with_or_without_locks().

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "hdf5_detail.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/expect.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"

namespace trireme::io {
namespace {

using detail::hdf5_try;

Hdf5Handle access_list(const std::string& path) {
  return Hdf5Handle(hdf5_try<Failure>(H5Pcreate(H5P_FILE_ACCESS), "{}: no property list", path));
}

constexpr const char* locking_variable = "HDF5_USE_FILE_LOCKING";

/// Returns why the file system gives no lock of a file; "" if it does, or if the file cannot be
/// opened.
std::string missing_locks(const std::string& path) {
  constexpr int no_support_in_kernel = 524;  // ENOTSUPP of NFS and Lustre, not in errno.h
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return "";
  const int error = ::flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  ::close(file);
  const bool is_missing =
      error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == no_support_in_kernel;
  return is_missing ? std::strerror(error) : "";
}

/// Turns locks off for files opened with this list. Returns false if HDF5 is too old for it.
bool disable_locks(const Hdf5Handle& access) {
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MAJOR == 1 && H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  return H5Pset_file_locking(access.id(), false, true) >= 0;
#else
  static_cast<void>(access);
  return false;
#endif
}

/// Calls `open`, which returns a file of this process alone, or a negative number. HDF5 locks a
/// file that it opens. If the file system has no locks, calls `open` again without: the leases of
/// folders need none. Throws InputError if the user's HDF5_USE_FILE_LOCKING asks for locks there,
/// else Failure.
template <class Open>
hid_t open_with_or_without_locks(const Hdf5Handle& access, const std::string& path,
                                 const char* problem, Open&& open) {
  const hid_t file = open();
  if (file >= 0) return file;
  const std::string reason = detail::hdf5_error_text(), missing = missing_locks(path);
  const char* const setting = std::getenv(locking_variable);
  const bool can_disable = !missing.empty() && setting == nullptr && disable_locks(access);
  validate(missing.empty() || can_disable,
           "{}: {}: its file system has no file locks ({}){}; set {}=FALSE, which opens HDF5 files "
           "without them",
           path, problem, missing,
           setting == nullptr
               ? ""
               : fmt::format(", but {}={} asks for them", locking_variable, printable(setting, 60)),
           locking_variable);
  ensure(can_disable, "{}: {}: {}", path, problem, reason);
  return hdf5_try<Failure>(open(), "{}: {}", path, problem);
}

std::vector<hsize_t> to_hsize(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

Hdf5Handle contiguous_layout(const std::string& location) {
  Hdf5Handle list(
      hdf5_try<Failure>(H5Pcreate(H5P_DATASET_CREATE), "{}: no property list", location));
  hdf5_try<Failure>(H5Pset_layout(list.id(), H5D_CONTIGUOUS), "{}: layout", location);
  hdf5_try<Failure>(H5Pset_alloc_time(list.id(), H5D_ALLOC_TIME_EARLY), "{}: early allocation",
                    location);
  hdf5_try<Failure>(H5Pset_fill_time(list.id(), H5D_FILL_TIME_NEVER), "{}: no fill", location);
  // Without times, equal input gives equal bytes.
  hdf5_try<Failure>(H5Pset_obj_track_times(list.id(), false), "{}: times", location);
  return list;
}

Hdf5Handle string_type(std::size_t bytes, const std::string& location) {
  Hdf5Handle type(hdf5_try<Failure>(H5Tcopy(H5T_C_S1), "{}: string type", location));
  hdf5_try<Failure>(H5Tset_size(type.id(), bytes), "{}: string type", location);
  hdf5_try<Failure>(H5Tset_cset(type.id(), H5T_CSET_UTF8), "{}: string type", location);
  if (bytes != H5T_VARIABLE)
    hdf5_try<Failure>(H5Tset_strpad(type.id(), H5T_STR_NULLPAD), "{}: string type", location);
  return type;
}

Hdf5Handle transfer_list(bool collective, const std::string& location) {
  Hdf5Handle list(hdf5_try<Failure>(H5Pcreate(H5P_DATASET_XFER), "{}: no property list", location));
#if defined(H5_HAVE_PARALLEL)
  if (collective)
    hdf5_try<Failure>(H5Pset_dxpl_mpio(list.id(), H5FD_MPIO_COLLECTIVE),
                      "{}: cannot enable collective transfers", location);
#else
  (void)collective;
#endif
  return list;
}

/// The selected elements of a transfer, in the file and in memory. In memory they are contiguous.
struct Selection {
  Hdf5Handle in_file, in_memory;
};

/// Selects the union of boxes of an open dataset. The caller holds Hdf5Lock.
Selection select(hid_t dataset, std::span<const Hdf5Box> boxes, const std::string& location) {
  Selection selection{
      Hdf5Handle(hdf5_try<Failure>(H5Dget_space(dataset), "{}: no extents", location)), {}};
  const bool scalar = H5Sget_simple_extent_type(selection.in_file.id()) == H5S_SCALAR;
  if (!scalar || boxes.empty())
    hdf5_try<Failure>(H5Sselect_none(selection.in_file.id()), "{}: selection", location);
  hsize_t elements = 0;
  for (const Hdf5Box& box : boxes) {
    elements += static_cast<hsize_t>(box.elements());
    if (scalar || box.elements() == 0) continue;
    const std::vector<hsize_t> start(box.start.begin(), box.start.end()),
        count(box.count.begin(), box.count.end());
    hdf5_try<Failure>(H5Sselect_hyperslab(selection.in_file.id(), H5S_SELECT_OR, start.data(),
                                          nullptr, count.data(), nullptr),
                      "{}: selection", location);
  }
  TRIREME_EXPECT(H5Sget_select_npoints(selection.in_file.id()) ==
                 static_cast<hssize_t>(elements));  // otherwise boxes overlap
  // One box keeps its extents in memory.
  std::vector<hsize_t> extents{elements};
  if (boxes.size() == 1 && !scalar) extents.assign(boxes[0].count.begin(), boxes[0].count.end());
  selection.in_memory = Hdf5Handle(
      hdf5_try<Failure>(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                        "{}: extents", location));
  return selection;
}

}  // namespace

Hdf5File Hdf5File::create(const std::string& path, const Hdf5CreateOptions& creation) {
  const Hdf5Lock lock;
  const Hdf5Handle access = access_list(path);
  if (creation.alignment > 0) {
    const hsize_t alignment = static_cast<hsize_t>(creation.alignment);
    hdf5_try<Failure>(H5Pset_alignment(access.id(), alignment, alignment),
                      "{}: cannot set the alignment {}", path, creation.alignment);
  }
  // A format that every HDF5 since 1.8 reads, with checksums on the metadata.
  hdf5_try<Failure>(H5Pset_libver_bounds(access.id(), H5F_LIBVER_V18, H5F_LIBVER_V18),
                    "{}: cannot set the version bounds", path);
  const Hdf5Handle layout(
      hdf5_try<Failure>(H5Pcreate(H5P_FILE_CREATE), "{}: no property list", path));
  // No times on the root group.
  hdf5_try<Failure>(H5Pset_obj_track_times(layout.id(), false), "{}: times", path);
  if (creation.user_block_bytes > 0) {
    hdf5_try<Failure>(
        H5Pset_userblock(layout.id(), static_cast<hsize_t>(creation.user_block_bytes)),
        "{}: cannot set a user block of {} bytes", path, creation.user_block_bytes);
  }
  const hid_t file = open_with_or_without_locks(access, path, "cannot be created", [&] {
    return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, layout.id(), access.id());
  });
  return Hdf5File(Hdf5Handle(file), path, false);
}

Hdf5File Hdf5File::open_to_write(const std::string& path, const void* communicator) {
  const Hdf5Lock lock;
  const Hdf5Handle access = access_list(path);
#if defined(H5_HAVE_PARALLEL)
  // Without this hint ROMIO reads the bytes between the pieces of one rank and writes them again,
  // under a lock of the file. Open MPI 5 ignores the hint.
  MPI_Info hints = MPI_INFO_NULL;
  MPI_Info_create(&hints);
  MPI_Info_set(hints, "romio_ds_write", "disable");
  const herr_t taken =
      H5Pset_fapl_mpio(access.id(), *static_cast<const MPI_Comm*>(communicator), hints);
  MPI_Info_free(&hints);
  hdf5_try<Failure>(taken, "{}: cannot select HDF5's MPI driver", path);
#else
  (void)communicator;
  throw Failure(path + ": this HDF5 was built without MPI");
#endif
  // Opened once: HDF5's MPI driver takes no locks, and a rank that tried again by itself would wait
  // for the others without end.
  const hid_t file = hdf5_try<Failure>(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()),
                                       "{}: cannot be opened to write", path);
  return Hdf5File(Hdf5Handle(file), path, true);
}

Hdf5Dataset Hdf5File::dataset(const std::string& object) const {
  const Hdf5Lock lock;
  const std::string location = location_of(object);
  Hdf5Handle dataset(hdf5_try<Failure>(H5Dopen2(handle_.id(), object.c_str(), H5P_DEFAULT),
                                       "{}: cannot be opened", location));
  const Hdf5Handle space(hdf5_try<Failure>(H5Dget_space(dataset.id()), "{}: no extents", location));
  std::vector<hsize_t> dims(static_cast<std::size_t>(
      hdf5_try<Failure>(H5Sget_simple_extent_ndims(space.id()), "{}: no extents", location)));
  if (!dims.empty())
    hdf5_try<Failure>(H5Sget_simple_extent_dims(space.id(), dims.data(), nullptr), "{}: no extents",
                      location);
  return Hdf5Dataset(std::move(dataset), location, {dims.begin(), dims.end()}, collective_);
}

void Hdf5File::create_group(const std::string& group) {
  const Hdf5Lock lock;
  if (group == "/") return;
  create_groups_above(group);  // HDF5 would store times in groups that it creates itself
  if (hdf5_try<Failure>(H5Lexists(handle_.id(), group.c_str(), H5P_DEFAULT), "{}: lookup",
                        location_of(group)) > 0)
    return;
  const Hdf5Handle layout(
      hdf5_try<Failure>(H5Pcreate(H5P_GROUP_CREATE), "{}: no property list", location_of(group)));
  hdf5_try<Failure>(H5Pset_obj_track_times(layout.id(), false), "{}: times", location_of(group));
  const Hdf5Handle made(hdf5_try<Failure>(
      H5Gcreate2(handle_.id(), group.c_str(), H5P_DEFAULT, layout.id(), H5P_DEFAULT),
      "{}: cannot be created", location_of(group)));
}

void Hdf5File::create_groups_above(const std::string& object) {
  const std::size_t slash = object.find_last_of('/');
  if (slash != std::string::npos && slash > 0) create_group(object.substr(0, slash));
}

Hdf5Dataset Hdf5File::create_dataset(const std::string& object, Hdf5Number type,
                                     std::span<const std::int64_t> shape) {
  const Hdf5Lock lock;
  const std::string location = location_of(object);
  const std::vector<hsize_t> dims = to_hsize(shape);
  const Hdf5Handle space(hdf5_try<Failure>(
      dims.empty() ? H5Screate(H5S_SCALAR)
                   : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
      "{}: cannot set the extents", location));
  create_groups_above(object);
  const Hdf5Handle layout = contiguous_layout(location);
  Hdf5Handle dataset(
      hdf5_try<Failure>(H5Dcreate2(handle_.id(), object.c_str(), detail::file_type(type),
                                   space.id(), H5P_DEFAULT, layout.id(), H5P_DEFAULT),
                        "{}: cannot be created", location));
  return Hdf5Dataset(std::move(dataset), location, {shape.begin(), shape.end()}, collective_);
}

void Hdf5File::write_strings(const std::string& object, const std::vector<std::string>& strings) {
  const Hdf5Lock lock;
  const std::string location = location_of(object);
  std::size_t width = 1;
  for (const std::string& text : strings) width = std::max(width, text.size());
  std::string packed(width * strings.size(), '\0');
  for (std::size_t i = 0; i < strings.size(); ++i)
    std::copy(strings[i].begin(), strings[i].end(),
              packed.begin() + static_cast<std::ptrdiff_t>(i * width));
  const hsize_t count = strings.size();
  create_groups_above(object);
  const Hdf5Handle type = string_type(width, location), layout = contiguous_layout(location);
  const Hdf5Handle space(hdf5_try<Failure>(H5Screate_simple(1, &count, nullptr),
                                           "{}: cannot set the extents", location));
  const Hdf5Handle dataset(
      hdf5_try<Failure>(H5Dcreate2(handle_.id(), object.c_str(), type.id(), space.id(), H5P_DEFAULT,
                                   layout.id(), H5P_DEFAULT),
                        "{}: cannot be created", location));
  hdf5_try<Failure>(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()),
                    "{}: cannot be written", location);
}

void Hdf5File::write_attribute(const std::string& object, const std::string& name,
                               const Hdf5Value& value) {
  const Hdf5Lock lock;
  const std::string location = fmt::format("{}: attribute {} of {}", path_, name, object);
  const Hdf5Handle owner(hdf5_try<Failure>(H5Oopen(handle_.id(), object.c_str(), H5P_DEFAULT),
                                           "{}: no such object", location));
  const Hdf5Handle space(hdf5_try<Failure>(H5Screate(H5S_SCALAR), "{}: extents", location));
  const auto put = [&](hid_t stored, hid_t memory, const void* data) {
    if (H5Aexists(owner.id(), name.c_str()) > 0)
      hdf5_try<Failure>(H5Adelete(owner.id(), name.c_str()), "{}: cannot be replaced", location);
    const Hdf5Handle made(hdf5_try<Failure>(
        H5Acreate2(owner.id(), name.c_str(), stored, space.id(), H5P_DEFAULT, H5P_DEFAULT),
        "{}: cannot be created", location));
    hdf5_try<Failure>(H5Awrite(made.id(), memory, data), "{}: cannot be written", location);
  };
  if (const auto* text = std::get_if<std::string>(&value)) {
    const Hdf5Handle type = string_type(H5T_VARIABLE, location);
    const char* characters = text->c_str();
    put(type.id(), type.id(), &characters);
  } else if (const auto* signed_value = std::get_if<std::int64_t>(&value)) {
    put(H5T_STD_I64LE, H5T_NATIVE_INT64, signed_value);
  } else if (const auto* unsigned_value = std::get_if<std::uint64_t>(&value)) {
    put(H5T_STD_U64LE, H5T_NATIVE_UINT64, unsigned_value);
  } else {
    put(H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &std::get<double>(value));
  }
}

std::int64_t Hdf5Dataset::offset() const {
  const Hdf5Lock lock;
  const haddr_t offset = H5Dget_offset(handle_.id());
  return offset == HADDR_UNDEF ? -1 : static_cast<std::int64_t>(offset);
}

std::int64_t Hdf5Dataset::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape_) product *= extent;
  return product;
}

void Hdf5Dataset::write(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                        Hdf5Number memory, const void* data) const {
  const Hdf5Box box{{start.begin(), start.end()}, {count.begin(), count.end()}};
  write({&box, 1}, memory, data);
}

void Hdf5Dataset::write(std::span<const Hdf5Box> boxes, Hdf5Number memory, const void* data) const {
  const Hdf5Lock lock;
  for (const Hdf5Box& box : boxes)
    TRIREME_EXPECT(box.start.size() == shape_.size() && box.count.size() == box.start.size());
  const Selection chosen = select(handle_.id(), boxes, location_);
  const Hdf5Handle transfer = transfer_list(collective_, location_);
  hdf5_try<Failure>(H5Dwrite(handle_.id(), detail::memory_type(memory), chosen.in_memory.id(),
                             chosen.in_file.id(), transfer.id(), data),
                    "{}: cannot be written", location_);
}

void Hdf5Dataset::write_all(Hdf5Number memory, const void* data) const {
  const std::vector<std::int64_t> start(shape_.size(), 0);
  write(start, shape_, memory, data);
}

}  // namespace trireme::io
