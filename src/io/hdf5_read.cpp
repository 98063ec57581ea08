// Opens HDF5 files and reads datasets, treating every file as untrusted.
//
// Hdf5File::resolve() follows links itself and refuses those to other files. dataset() reads type,
// extents and storage, and checks that the file can hold them before any buffer is allocated.
// Hdf5Dataset::read() then checks the range and transfers the elements. Readers of shards,
// checkpoints and datasets call these functions; all take Hdf5Lock.

#include <algorithm>
#include <limits>

#include <sys/stat.h>

#include <fmt/ranges.h>

#include "hdf5_detail.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::io {
namespace {

using detail::hdf5_try;

// An untrusted file can claim any extent for compressed data. Deflate compresses at most 1032 : 1,
// other common filters less.
constexpr std::int64_t max_compression_ratio = 2000, always_allowed_bytes = 1 << 20;

std::vector<std::int64_t> extents_of(hid_t space, const std::string& location) {
  const int rank =
      hdf5_try<InputError>(H5Sget_simple_extent_ndims(space), "{}: no extents", location);
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  if (rank > 0)
    hdf5_try<InputError>(H5Sget_simple_extent_dims(space, dims.data(), nullptr), "{}: no extents",
                         location);
  std::vector<std::int64_t> shape;
  for (const hsize_t extent : dims) {
    validate(extent <= static_cast<hsize_t>(std::numeric_limits<std::int64_t>::max()),
             "{}: an extent of {} elements exceeds 2^63 - 1", location, extent);
    shape.push_back(static_cast<std::int64_t>(extent));
  }
  return shape;
}

/// Returns the size of an array in bytes. Throws InputError on overflow.
std::int64_t checked_bytes(const std::vector<std::int64_t>& shape, std::int64_t element_bytes,
                           const std::string& location) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t bytes = element_bytes;
  for (const std::int64_t extent : shape) {
    const bool overflow = __builtin_mul_overflow(bytes, extent, &bytes);
    validate(!overflow, "{}: its extents [{}] exceed 2^63 - 1 bytes", location,
             fmt::join(shape, ", "));
  }
  return bytes;
}

void describe_type(hid_t type, Hdf5Description& description) {
  description.element_bytes = static_cast<std::int64_t>(H5Tget_size(type));
  switch (H5Tget_class(type)) {
    case H5T_ENUM:  // h5py stores bool as an enum
    case H5T_INTEGER: {
      const hid_t number = H5Tget_class(type) == H5T_ENUM ? H5Tget_super(type) : H5Tcopy(type);
      const Hdf5Handle owner(number);
      description.kind = Hdf5Description::Kind::integer;
      description.is_signed = H5Tget_sign(number) == H5T_SGN_2;
      description.native_order =
          description.element_bytes == 1 || H5Tget_order(number) == H5Tget_order(H5T_NATIVE_INT);
      break;
    }
    case H5T_FLOAT:
      description.kind = Hdf5Description::Kind::real;
      description.is_signed = true;
      description.native_order =
          H5Tequal(type, H5T_NATIVE_FLOAT) > 0 || H5Tequal(type, H5T_NATIVE_DOUBLE) > 0;
      break;
    case H5T_STRING: description.kind = Hdf5Description::Kind::text; break;
    default: description.kind = Hdf5Description::Kind::other;
  }
}

/// Reads the storage layout of a dataset into `description` and checks that the file can hold the
/// elements. Throws InputError.
void describe_storage(hid_t dataset, std::int64_t file_bytes, const std::string& location,
                      Hdf5Description& description) {
  // 1. Refuse data in other files.
  const Hdf5Handle layout(
      hdf5_try<InputError>(H5Dget_create_plist(dataset), "{}: no layout", location));
  const H5D_layout_t kind = H5Pget_layout(layout.id());
  validate(kind == H5D_CONTIGUOUS || kind == H5D_CHUNKED || kind == H5D_COMPACT,
           "{}: is a virtual dataset (its data are in other files), which is not supported; copy "
           "it into a plain "
           "dataset",
           location);
  validate(
      H5Pget_external_count(layout.id()) == 0,
      "{}: its data are in another file (external storage), which is not supported; copy it into a "
      "plain dataset",
      location);
  // 2. Read the extents of a chunk.
  if (kind == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(std::max<std::size_t>(description.shape.size(), 1));
    const int rank = hdf5_try<InputError>(
        H5Pget_chunk(layout.id(), static_cast<int>(chunk.size()), chunk.data()), "{}: no chunks",
        location);
    description.chunk.assign(
        chunk.begin(),
        chunk.begin() + std::min<std::ptrdiff_t>(rank, static_cast<std::ptrdiff_t>(chunk.size())));
  }
  // 3. Compare the claimed size with the file. Files open for writing are not checked.
  if (file_bytes < 0 || description.bytes == 0) return;
  const std::int64_t stored = static_cast<std::int64_t>(H5Dget_storage_size(dataset));
  if (kind == H5D_CONTIGUOUS) {
    const haddr_t offset = H5Dget_offset(dataset);
    validate(offset != HADDR_UNDEF, "{}: was created but never written", location);
    description.offset = static_cast<std::int64_t>(offset);
    validate(description.offset >= 0 && description.offset <= file_bytes &&
                 description.bytes <= file_bytes - description.offset,
             "{}: its {} bytes from byte {} on do not fit in the file of {} bytes: the file is "
             "truncated or damaged",
             location, description.bytes, description.offset, file_bytes);
  } else if (kind == H5D_CHUNKED) {
    validate(stored > 0 && stored <= file_bytes,
             "{}: has {} stored bytes in a file of {} bytes: it was never written or is damaged",
             location, stored, file_bytes);
    const std::int64_t allowed = std::max(
        always_allowed_bytes,
        max_compression_ratio *
            std::min(file_bytes, std::numeric_limits<std::int64_t>::max() / max_compression_ratio));
    validate(description.bytes <= allowed, "{}: claims {} bytes, which {} stored bytes cannot hold",
             location, description.bytes, stored);
    // HDF5 reads a whole chunk into memory.
    const std::int64_t chunk_bytes =
        checked_bytes(description.chunk, description.element_bytes, location);
    validate(chunk_bytes <= allowed, "{}: a chunk claims {} bytes in a file of {}", location,
             chunk_bytes, file_bytes);
  }
}

/// Splits an object path at slashes; drops empty parts and ".".
std::vector<std::string> path_components(const std::string& object) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : object + "/") {
    if (c != '/') {
      part += c;
    } else if (!part.empty()) {
      if (part != ".") parts.push_back(part);
      part.clear();
    }
  }
  return parts;
}

constexpr int max_link_depth = 16;

}  // namespace

Hdf5File Hdf5File::open(const std::string& path) {
  struct stat status{};
  validate(::stat(path.c_str(), &status) == 0, "{}: no such file, or no permission to read it",
           path);
  validate(S_ISREG(status.st_mode), "{}: not a file", path);
  const Hdf5Lock lock;
  const Hdf5Handle access(
      hdf5_try<Failure>(H5Pcreate(H5P_FILE_ACCESS), "{}: no property list", path));
#if H5_VERSION_GE(1, 10, 7)
  // Many parallel file systems refuse file locks, and readers do not need them.
  H5Pset_file_locking(access.id(), false, true);
#endif
  const hid_t file = hdf5_try<InputError>(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()),
                                          "{}: not an HDF5 file that can be read", path);
  return Hdf5File(Hdf5Handle(file), path, false, static_cast<std::int64_t>(status.st_size));
}

// Returns the path of an object with all soft links resolved; empty if the object does not exist.
// Following soft links here ensures that none leaves the file.
std::string Hdf5File::resolve(const std::string& object, int depth) const {
  validate(depth < max_link_depth, "{}: its links form a circle", location_of(object));
  std::string found = "/";
  for (const std::string& part : path_components(object)) {
    const std::string next = found == "/" ? found + part : found + "/" + part;
    H5O_info_t owner;
    if (H5Oget_info_by_name(handle_.id(), found.c_str(), &owner, H5P_DEFAULT) < 0 ||
        owner.type != H5O_TYPE_GROUP)
      return H5Eclear2(H5E_DEFAULT), "";
    if (H5Lexists(handle_.id(), next.c_str(), H5P_DEFAULT) <= 0) return H5Eclear2(H5E_DEFAULT), "";
    H5L_info_t link;
    hdf5_try<InputError>(H5Lget_info(handle_.id(), next.c_str(), &link, H5P_DEFAULT), "{}: link {}",
                         path_, printable(next));
    if (link.type == H5L_TYPE_HARD) {
      found = next;
      continue;
    }
    validate(
        link.type == H5L_TYPE_SOFT,
        "{}: {} is a link into another file, which is not followed; copy the data into this file",
        path_, printable(next));
    std::string target(link.u.val_size, '\0');
    hdf5_try<InputError>(
        H5Lget_val(handle_.id(), next.c_str(), target.data(), target.size(), H5P_DEFAULT),
        "{}: link {}", path_, printable(next));
    target.resize(std::min(target.find('\0'), target.size()));
    found = resolve(target.starts_with('/') ? target : found + "/" + target, depth + 1);
    if (found.empty()) return found;
  }
  return found;
}

bool Hdf5File::has(const std::string& object) const {
  const Hdf5Lock lock;
  return !resolve(object, 0).empty();
}

bool Hdf5File::is_group(const std::string& object) const {
  const Hdf5Lock lock;
  const std::string found = resolve(object, 0);
  if (found.empty()) return false;
  H5O_info_t info;
  hdf5_try<InputError>(H5Oget_info_by_name(handle_.id(), found.c_str(), &info, H5P_DEFAULT), "{}",
                       location_of(object));
  return info.type == H5O_TYPE_GROUP;
}

Hdf5Handle Hdf5File::open_object(const std::string& object) const {
  const std::string found = resolve(object, 0);
  validate(!found.empty(), "{} is missing", location_of(object));
  return Hdf5Handle(hdf5_try<InputError>(H5Oopen(handle_.id(), found.c_str(), H5P_DEFAULT),
                                         "{}: cannot be opened", location_of(object)));
}

std::vector<std::string> Hdf5File::list(const std::string& group) const {
  const Hdf5Lock lock;
  validate(is_group(group), "{}: no such group", location_of(group));
  const Hdf5Handle owner = open_object(group);
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  hdf5_try<InputError>(H5Literate(owner.id(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names),
                       "{}: cannot be listed", location_of(group));
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Hdf5File::list_datasets(const std::string& group) const {
  constexpr std::size_t max_depth = 16,
                        max_objects = 1'000'000;  // ends the search in a group that links to itself
  std::size_t seen = 0;
  const Hdf5Lock lock;
  std::vector<std::string> datasets;
  const auto join = [](const std::string& parent, const std::string& name) {
    return parent.empty() ? name : parent + "/" + name;
  };
  const std::vector<std::string> top = path_components(group);
  std::vector<std::string> pending{fmt::format("{}", fmt::join(top, "/"))};
  while (!pending.empty()) {
    const std::string current = pending.back();
    pending.pop_back();
    validate(path_components(current).size() <= top.size() + max_depth,
             "{}: groups are nested deeper than {} levels at {}", path_, max_depth,
             printable(current));
    for (const std::string& name : list(current)) {
      const std::string child = join(current, name);
      (is_group(child) ? pending : datasets).push_back(child);
      validate(++seen <= max_objects, "{}: more than {} objects", path_, max_objects);
    }
  }
  std::sort(datasets.begin(), datasets.end());
  return datasets;
}

Hdf5Dataset Hdf5File::dataset(const std::string& object) const {
  const Hdf5Lock lock;
  Hdf5Handle handle = open_object(object);
  const std::string location = location_of(object);
  validate(H5Iget_type(handle.id()) == H5I_DATASET, "{}: is not a dataset", location);
  const Hdf5Handle space(
      hdf5_try<InputError>(H5Dget_space(handle.id()), "{}: no extents", location));
  validate(H5Sget_simple_extent_type(space.id()) != H5S_NULL, "{}: is empty", location);
  const Hdf5Handle type(hdf5_try<InputError>(H5Dget_type(handle.id()), "{}: no type", location));
  Hdf5Description description;
  describe_type(type.id(), description);
  description.shape = extents_of(space.id(), location);
  description.bytes = checked_bytes(description.shape, description.element_bytes, location);
  describe_storage(handle.id(), file_bytes_, location, description);
  return Hdf5Dataset(std::move(handle), location, std::move(description), collective_);
}

void Hdf5Dataset::read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                       Hdf5Number memory, void* out) const {
  const Hdf5Box box{{start.begin(), start.end()}, {count.begin(), count.end()}};
  read({&box, 1}, memory, out);
}

void Hdf5Dataset::read(std::span<const Hdf5Box> boxes, Hdf5Number memory, void* out) const {
  const Hdf5Lock lock;
  const std::size_t rank = description_.shape.size();
  validate(description_.kind == Hdf5Description::Kind::integer ||
               description_.kind == Hdf5Description::Kind::real,
           "{}: is not a numeric dataset", location_);
  std::int64_t elements = 0;
  for (const Hdf5Box& box : boxes) {
    TRIREME_EXPECT(box.start.size() == rank && box.count.size() == rank);
    elements += box.elements();
    for (std::size_t i = 0; i < rank && box.elements() != 0; ++i) {
      validate(box.start[i] >= 0 && box.count[i] > 0 &&
                   box.start[i] <= description_.shape[i] - box.count[i],
               "{}: elements {} to {} requested, but the extent is {}", location_, box.start[i],
               box.start[i] + box.count[i], description_.shape[i]);
    }
  }
  if (elements == 0) return;
  const detail::Selection chosen = detail::select<InputError>(handle_.id(), boxes, location_);
  hdf5_try<InputError>(H5Dread(handle_.id(), detail::memory_type(memory), chosen.in_memory.id(),
                               chosen.in_file.id(), H5P_DEFAULT, out),
                       "{}: cannot be read", location_);
}

void Hdf5Dataset::read_all(Hdf5Number memory, void* out) const {
  const std::vector<std::int64_t> start(description_.shape.size(), 0);
  read(start, description_.shape, memory, out);
}

}  // namespace trireme::io
