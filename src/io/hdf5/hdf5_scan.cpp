// SPDX-License-Identifier: Apache-2.0
//
// Describes an HDF5 file for its index: the only code that reads files through the HDF5 library.
//
// scan_hdf5() walks the groups from the root. For each link it reports one object with its
// attributes: a group, a dataset with type, extents and storage, a soft link with its target.
// Whatever HDF5 cannot read of an object becomes the problem of that object; the walk continues.
// hdf5_indexing_child.cpp calls it, for untrusted files in a child process.
#include "hdf5_scan.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "hdf5_detail.hpp"
#include "hdf5_driver.hpp"
#include "hdf5_report.hpp"

#include "trireme/base/check.hpp"

namespace trireme::io::detail {
namespace {

// Limit for all strings of one object. Class names and decks are far smaller.
constexpr std::int64_t max_text_bytes = std::int64_t{32} << 20;
// HDF5 stores compact datasets in an object header of at most 64 KiB.
constexpr std::uint64_t max_compact_bytes = 64 << 10;

/// An open attribute or dataset of strings, of fixed or variable length, with its type and extents.
struct StringSource {
  hid_t object;
  bool is_attribute;
  hid_t type, space;
};

// Frees the memory that HDF5 allocates for strings of variable length, also after an error.
struct VariableStrings {
  std::vector<char*> texts;
  hid_t type, space;
  ~VariableStrings() { H5Dvlen_reclaim(type, space, H5P_DEFAULT, texts.data()); }
};

herr_t read_raw_strings(const StringSource& source, hid_t memory, void* out) {
  return source.is_attribute ? H5Aread(source.object, memory, out)
                             : H5Dread(source.object, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
}

std::vector<std::string> read_variable_strings(const StringSource& source, hid_t memory,
                                               hssize_t count) {
  hsize_t bytes = 0;  // the file may store equal strings once, so this can exceed the file's size
  // For a scalar this function of HDF5 1.10 crashes; one string needs no limit.
  const bool is_scalar = H5Sget_simple_extent_type(source.space) == H5S_SCALAR;
  if (!source.is_attribute && !is_scalar)
    hdf5_try<InputError>(H5Dvlen_get_buf_size(source.object, memory, source.space, &bytes),
                         "lengths");
  validate(bytes <= static_cast<hsize_t>(max_text_bytes),
           "{} bytes of text exceed the limit of 32 MiB", bytes);
  VariableStrings read{std::vector<char*>(static_cast<std::size_t>(count), nullptr), memory,
                       source.space};
  hdf5_try<InputError>(read_raw_strings(source, memory, read.texts.data()), "cannot be read");
  std::vector<std::string> strings;
  for (const char* text : read.texts) strings.emplace_back(text == nullptr ? "" : text);
  return strings;
}

/// Returns all strings. Throws InputError if they need more than 32 MiB.
std::vector<std::string> read_strings(const StringSource& source) {
  const hssize_t count =
      hdf5_try<InputError>(H5Sget_simple_extent_npoints(source.space), "extents");
  if (count == 0) return {};
  const Hdf5Handle memory(hdf5_try<InputError>(H5Tcopy(source.type), "type"));
  const bool variable = hdf5_try<InputError>(H5Tis_variable_str(source.type), "type") > 0;
  const std::int64_t width = variable ? static_cast<std::int64_t>(sizeof(char*))
                                      : static_cast<std::int64_t>(H5Tget_size(source.type));
  const std::int64_t bytes_per_string = static_cast<std::int64_t>(sizeof(std::string)) + width;
  validate(width > 0 && width < max_text_bytes && count <= max_text_bytes / bytes_per_string,
           "{} strings of {} bytes exceed the limit of 32 MiB", count, width);
  if (variable) return read_variable_strings(source, memory.id(), count);
  const bool space_padded = H5Tget_strpad(source.type) == H5T_STR_SPACEPAD;
  std::string packed(static_cast<std::size_t>(count * width), '\0');
  hdf5_try<InputError>(read_raw_strings(source, memory.id(), packed.data()), "cannot be read");
  std::vector<std::string> strings;
  for (hssize_t i = 0; i < count; ++i) {
    std::string text =
        packed.substr(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
    text.resize(std::min(text.find('\0'), text.size()));
    if (space_padded) text.resize(text.find_last_not_of(' ') + 1);
    strings.push_back(std::move(text));
  }
  return strings;
}

Hdf5Value read_integer(hid_t attribute, hid_t type) {
  validate(H5Tget_size(type) <= 8, "is an integer of more than 64 bits; at most 64 can be read");
  const bool is_uint64 = H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) == 8 &&
                         H5Tget_sign(type) == H5T_SGN_NONE;
  std::uint64_t unsigned_value = 0;
  if (is_uint64)
    hdf5_try<InputError>(H5Aread(attribute, H5T_NATIVE_UINT64, &unsigned_value), "cannot be read");
  if (unsigned_value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return unsigned_value;
  std::int64_t value = 0;
  hdf5_try<InputError>(H5Aread(attribute, H5T_NATIVE_INT64, &value), "cannot be read");
  return value;
}

/// Reads an attribute of strings, or of one number.
void read_attribute(hid_t attribute, ReportedAttribute& reported) {
  const Hdf5Handle type(hdf5_try<InputError>(H5Aget_type(attribute), "no type"));
  const Hdf5Handle space(hdf5_try<InputError>(H5Aget_space(attribute), "no extents"));
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  const H5T_class_t kind = H5Tget_class(type.id());
  reported.is_text = kind == H5T_STRING;
  if (reported.is_text) reported.strings = read_strings({attribute, true, type.id(), space.id()});
  validate(count == 1, "has {} values, but must have one", count);
  if (reported.is_text) {
    reported.value = reported.strings.at(0);
  } else if (kind == H5T_FLOAT) {
    double value = 0;
    hdf5_try<InputError>(H5Aread(attribute, H5T_NATIVE_DOUBLE, &value), "cannot be read");
    reported.value = value;
  } else {
    validate(kind == H5T_ENUM || kind == H5T_INTEGER, "is neither a number nor a string");
    reported.value = read_integer(attribute, type.id());
  }
}

/// Adds a name to a vector of strings. Returns -1 if there are too many: exceptions must not pass
/// through HDF5.
herr_t add_name(const char* name, void* out) {
  auto& names = *static_cast<std::vector<std::string>*>(out);
  try {
    if (names.size() < max_objects) names.emplace_back(name);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return names.size() < max_objects ? 0 : -1;
}

/// Runs the body. Returns its problem: the message of an InputError, else "".
template <class Body>
std::string problem_of(Body&& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

void report_attributes(hid_t owner, ReportedObject& reported) {
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
    return add_name(name, out);
  };
  reported.attributes_problem = problem_of([&] {
    hdf5_try<InputError>(H5Aiterate2(owner, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names),
                         "its attributes cannot be listed");
  });
  for (const std::string& name : names) {
    ReportedAttribute attribute;
    attribute.name = name;
    attribute.problem = problem_of([&] {
      const Hdf5Handle handle(
          hdf5_try<InputError>(H5Aopen(owner, name.c_str(), H5P_DEFAULT), "cannot be opened"));
      read_attribute(handle.id(), attribute);
    });
    reported.attributes.push_back(std::move(attribute));
  }
}

/// Returns whether a floating-point type is IEEE 754 of 2, 4 or 8 bytes.
bool is_ieee(hid_t type) {
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, fraction = 0, fraction_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &fraction, &fraction_bits) < 0)
    return false;
  const std::size_t bits = 8 * H5Tget_size(type);
  const bool known = (bits == 16 && exponent_bits == 5) || (bits == 32 && exponent_bits == 8) ||
                     (bits == 64 && exponent_bits == 11);
  return known && fraction == 0 && fraction_bits == bits - exponent_bits - 1 &&
         exponent == fraction_bits && sign == bits - 1 && H5Tget_norm(type) == H5T_NORM_IMPLIED &&
         H5Tget_ebias(type) == (std::size_t{1} << (exponent_bits - 1)) - 1;
}

/// Returns whether an integer uses all bits of its bytes.
bool is_plain_integer(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  return (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) &&
         H5Tget_precision(type) == 8 * bytes && H5Tget_offset(type) == 0;
}

void report_type(hid_t type, ReportedDataset& reported) {
  reported.element_bytes = H5Tget_size(type);
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_STRING) reported.kind = StoredDataset::Kind::text;
  if (kind != H5T_INTEGER && kind != H5T_ENUM && kind != H5T_FLOAT) return;
  // h5py stores bool as an enum of integers.
  const Hdf5Handle number(kind == H5T_ENUM ? H5Tget_super(type) : H5Tcopy(type));
  const H5T_order_t order = H5Tget_order(number.id());
  const bool known_order =
      order == H5T_ORDER_LE || order == H5T_ORDER_BE || reported.element_bytes == 1;
  reported.native_order = reported.element_bytes == 1 || order == H5Tget_order(H5T_NATIVE_INT);
  if (kind == H5T_FLOAT) {
    if (known_order && is_ieee(number.id())) reported.kind = StoredDataset::Kind::real;
    reported.is_signed = true;
  } else if (known_order && is_plain_integer(number.id())) {
    reported.kind = StoredDataset::Kind::integer;
    reported.is_signed = H5Tget_sign(number.id()) == H5T_SGN_2;
  }
}

void report_filters(hid_t layout, ReportedDataset& reported) {
  const int filters = hdf5_try<InputError>(H5Pget_nfilters(layout), "its filters");
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, parameters[8] = {}, settings = 0;
    std::size_t count = 8;
    char name[64] = "";
    ReportedFilter filter;
    filter.id =
        hdf5_try<InputError>(H5Pget_filter2(layout, static_cast<unsigned>(i), &flags, &count,
                                            parameters, sizeof name - 1, name, &settings),
                             "its filters");
    filter.parameter = parameters[0];
    filter.name = name;
    reported.filters.push_back(std::move(filter));
  }
}

/// Returns the place of data in the file; -1: they were never written. HDF5 adds the size of the
/// user block to its undefined address, too, which is 2^64 - 1. Throws InputError for a place
/// inside the user block.
std::int64_t place_of_data(haddr_t address, hsize_t user_block) {
  if (address == HADDR_UNDEF + static_cast<haddr_t>(user_block)) return -1;
  validate(address >= user_block,
           "its data begin at byte {} of the file, inside the user block of {} bytes: the file is "
           "damaged or malicious",
           address, user_block);
  return address <= static_cast<haddr_t>(std::numeric_limits<std::int64_t>::max())
             ? static_cast<std::int64_t>(address)
             : -1;
}

/// Reports the places of all chunks, if there are not too many. `budget`: chunks that may still be
/// listed.
void report_chunks(hid_t dataset, hsize_t user_block, std::uint64_t& budget,
                   ReportedDataset& reported) {
  const std::optional<std::uint64_t> count = count_chunks(reported.shape, reported.chunk);
  if (!count || *count > std::min(max_chunks, budget)) return;
  std::vector<hsize_t> first(reported.shape.size(), 0);
  for (std::uint64_t i = 0; i < *count; ++i) {
    Hdf5Chunk& chunk = reported.chunks.emplace_back(find_chunk(dataset, first.data()));
    if (chunk.offset >= 0)
      chunk.offset = place_of_data(static_cast<haddr_t>(chunk.offset), user_block);
    --budget;
    // Such a dataset cannot be read.
    if (chunk.offset < 0) return;
    // Go on to the next chunk in row-major order.
    for (std::size_t d = first.size(); d-- > 0;) {
      first[d] += reported.chunk[d];
      if (first[d] < reported.shape[d]) break;
      first[d] = 0;
    }
  }
}

void report_storage(hid_t dataset, hid_t layout, hid_t type, hsize_t user_block,
                    std::uint64_t& budget, ReportedDataset& reported) {
  switch (H5Pget_layout(layout)) {
    case H5D_CONTIGUOUS: {
      const haddr_t address = H5Dget_offset(dataset);
      if (address != HADDR_UNDEF) reported.offset = place_of_data(address, user_block);
      return;
    }
    case H5D_CHUNKED: {
      reported.layout = ReportedDataset::Layout::chunked;
      reported.chunk.resize(reported.shape.size());
      const int rank =
          hdf5_try<InputError>(H5Pget_chunk(layout, static_cast<int>(reported.chunk.size()),
                                            reinterpret_cast<hsize_t*>(reported.chunk.data())),
                               "no chunks");
      reported.chunk.resize(std::min(reported.chunk.size(), static_cast<std::size_t>(rank)));
      unsigned options = 0;
      hdf5_try<InputError>(H5Pget_chunk_opts(layout, &options), "options of its chunks");
      reported.partial_chunks_unfiltered = (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
      report_filters(layout, reported);
      return report_chunks(dataset, user_block, budget, reported);
    }
    case H5D_COMPACT: {
      reported.layout = ReportedDataset::Layout::compact;
      std::uint64_t bytes = reported.element_bytes;
      for (const std::uint64_t extent : reported.shape)
        if (__builtin_mul_overflow(bytes, extent, &bytes)) return;
      if (bytes > max_compact_bytes) return;
      reported.values.resize(bytes);
      // In the type of the file: nothing is converted.
      if (bytes > 0)
        hdf5_try<InputError>(
            H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, reported.values.data()),
            "cannot be read");
      return;
    }
    default: throw InputError("has an unknown layout");
  }
}

ReportedDataset report_dataset(hid_t dataset, hsize_t user_block, std::uint64_t& budget) {
  static_assert(sizeof(hsize_t) == sizeof(std::uint64_t));
  ReportedDataset reported;
  // Before anything else: H5Dget_space() of a virtual dataset opens the files of its sources.
  const Hdf5Handle layout(hdf5_try<InputError>(H5Dget_create_plist(dataset), "no layout"));
  if (H5Pget_external_count(layout.id()) != 0)
    reported.layout = ReportedDataset::Layout::external;
  else if (H5Pget_layout(layout.id()) == H5D_VIRTUAL)
    reported.layout = ReportedDataset::Layout::in_other_files;
  if (reported.layout != ReportedDataset::Layout::contiguous) return reported;
  const Hdf5Handle space(hdf5_try<InputError>(H5Dget_space(dataset), "no extents"));
  const Hdf5Handle type(hdf5_try<InputError>(H5Dget_type(dataset), "no type"));
  reported.is_null = H5Sget_simple_extent_type(space.id()) == H5S_NULL;
  if (reported.is_null) return reported;
  reported.shape.resize(static_cast<std::size_t>(
      hdf5_try<InputError>(H5Sget_simple_extent_ndims(space.id()), "no extents")));
  if (!reported.shape.empty()) {
    hdf5_try<InputError>(
        H5Sget_simple_extent_dims(space.id(), reinterpret_cast<hsize_t*>(reported.shape.data()),
                                  nullptr),
        "no extents");
  }
  report_type(type.id(), reported);
  if (reported.kind == StoredDataset::Kind::integer || reported.kind == StoredDataset::Kind::real)
    report_storage(dataset, layout.id(), type.id(), user_block, budget, reported);
  // Strings have no values that are read from the file directly, only a list that is read here.
  if (reported.kind == StoredDataset::Kind::text && reported.shape.size() <= 1) {
    reported.strings_problem = problem_of(
        [&] { reported.strings = read_strings({dataset, false, type.id(), space.id()}); });
  }
  return reported;
}

/// Walks the groups of an open file.
class Walk {
 public:
  Walk(hid_t file, const std::function<void(const std::string&)>& take) : file_(file), take_(take) {
    const Hdf5Handle layout(hdf5_try<InputError>(H5Fget_create_plist(file), "its superblock"));
    hdf5_try<InputError>(H5Pget_userblock(layout.id(), &user_block_), "its superblock");
  }

  void run() {
    pending_.emplace_back("", 0);
    while (!pending_.empty()) {
      const auto [group, depth] = std::move(pending_.back());
      pending_.pop_back();
      report_object(group, depth);
    }
  }

 private:
  /// Reports the object at a path that consists of hard links, and remembers the links of a group.
  void report_object(const std::string& path, std::size_t depth) {
    ReportedObject reported;
    reported.path = path;
    std::vector<std::string> names;
    reported.problem = problem_of([&] {
      const Hdf5Handle object(hdf5_try<InputError>(
          H5Oopen(file_, path.empty() ? "/" : path.c_str(), H5P_DEFAULT), "cannot be opened"));
      const H5I_type_t kind = H5Iget_type(object.id());
      reported.kind = kind == H5I_GROUP     ? ReportedObject::Kind::group
                      : kind == H5I_DATASET ? ReportedObject::Kind::dataset
                                            : ReportedObject::Kind::other;
      report_attributes(object.id(), reported);
      if (kind == H5I_DATASET)
        reported.dataset = report_dataset(object.id(), user_block_, chunk_budget_);
      if (kind != H5I_GROUP) return;
      validate(depth < max_depth, "groups are nested deeper than {} levels", max_depth - 1);
      names = names_in(object.id());
    });
    put(reported);
    for (const std::string& name : names)
      report_link(path.empty() ? name : path + "/" + name, depth + 1);
  }

  std::vector<std::string> names_in(hid_t group) {
    std::vector<std::string> names;
    const auto add = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
      return add_name(name, out);
    };
    hdf5_try<InputError>(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names),
                         "cannot be listed");
    // A name with a slash would be followed as a path, also out of the file.
    for (const std::string& name : names)
      validate(!name.empty() && name != "." && name.find('/') == std::string::npos,
               "has a link with an impossible name");
    return names;
  }

  /// Reports a soft link, or a link to another file; remembers the object of a hard link.
  void report_link(const std::string& path, std::size_t depth) {
    H5L_info_t link;
    ReportedObject reported;
    reported.path = path;
    reported.problem = problem_of([&] {
      hdf5_try<InputError>(H5Lget_info(file_, path.c_str(), &link, H5P_DEFAULT), "its link");
      if (link.type == H5L_TYPE_HARD) return;
      reported.kind = ReportedObject::Kind::link_to_other_file;
      if (link.type != H5L_TYPE_SOFT) return;
      reported.target.assign(link.u.val_size, '\0');
      hdf5_try<InputError>(H5Lget_val(file_, path.c_str(), reported.target.data(),
                                      reported.target.size(), H5P_DEFAULT),
                           "its link");
      reported.target.resize(std::min(reported.target.find('\0'), reported.target.size()));
      reported.kind = ReportedObject::Kind::soft_link;
    });
    if (reported.problem.empty() && link.type == H5L_TYPE_HARD)
      pending_.emplace_back(path, depth);
    else
      put(reported);
    validate(++num_links_ <= max_objects, "has more than {} objects", max_objects);
  }

  void put(const ReportedObject& reported) { take_(to_bytes(reported)); }

  hid_t file_;
  hsize_t user_block_ = 0;
  std::uint64_t chunk_budget_ = max_listed_chunks;
  const std::function<void(const std::string&)>& take_;
  std::vector<std::pair<std::string, std::size_t>> pending_;  ///< paths and their depths
  std::size_t num_links_ = 0;
};

}  // namespace

void scan_hdf5(const std::string& path, const std::function<void(const std::string&)>& take) {
  const Hdf5Lock lock;
  forget_disk_failure();
  try {
    const Hdf5Handle file = open_to_scan(path);
    haddr_t image = 0;
    hsize_t image_bytes = 0;
    hdf5_try<InputError>(H5Fget_mdc_image_info(file.id(), &image, &image_bytes), "its superblock");
    validate(image_bytes == 0,
             "contains a metadata cache image, which is not supported; `h5repack OLD.h5 NEW.h5` "
             "writes a file without one");
    Walk(file.id(), take).run();
  } catch (const InputError&) {
    check_disk();
    throw;
  }
  check_disk();
}

}  // namespace trireme::io::detail
