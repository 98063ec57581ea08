// Reads scalar attributes and lists of strings for Hdf5File.
//
// Untrusted files can claim any size, so sizes are checked before memory is allocated. The shard
// and checkpoint readers use these functions for formats, versions, class names and decks.

#include <cmath>
#include <cstring>
#include <limits>

#include "hdf5_detail.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::io {
namespace detail {
namespace {

// Limit for all strings of one object. Class names and decks are far smaller.
constexpr std::int64_t max_text_bytes = std::int64_t{128} << 20;

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

}  // namespace

std::vector<std::string> read_string_elements(const StringSource& source) {
  const hssize_t count = hdf5_try<InputError>(H5Sget_simple_extent_npoints(source.space),
                                              "{}: extents", source.location);
  std::vector<std::string> strings;
  if (count == 0) return strings;
  const Hdf5Handle memory(hdf5_try<InputError>(H5Tcopy(source.type), "{}: type", source.location));
  const bool variable =
      hdf5_try<InputError>(H5Tis_variable_str(source.type), "{}: type", source.location) > 0;
  const std::int64_t width = variable ? static_cast<std::int64_t>(sizeof(char*))
                                      : static_cast<std::int64_t>(H5Tget_size(source.type));
  const std::int64_t bytes_per_string = static_cast<std::int64_t>(sizeof(std::string)) + width;
  validate(width > 0 && width < max_text_bytes && count <= max_text_bytes / bytes_per_string,
           "{}: {} strings of {} bytes exceed the limit of 128 MiB", source.location, count, width);
  if (variable) {
    hsize_t bytes = 0;  // the file may store equal strings once, so this can exceed the file's size
    if (!source.is_attribute)
      hdf5_try<InputError>(H5Dvlen_get_buf_size(source.object, memory.id(), source.space, &bytes),
                           "{}: lengths", source.location);
    validate(bytes <= static_cast<hsize_t>(max_text_bytes),
             "{}: {} bytes of text exceed the limit of 128 MiB", source.location, bytes);
    VariableStrings variable_strings{std::vector<char*>(static_cast<std::size_t>(count), nullptr),
                                     memory.id(), source.space};
    hdf5_try<InputError>(read_raw_strings(source, memory.id(), variable_strings.texts.data()),
                         "{}: cannot be read", source.location);
    for (const char* text : variable_strings.texts)
      strings.emplace_back(text == nullptr ? "" : text);
    return strings;
  }
  const bool space_padded = H5Tget_strpad(source.type) == H5T_STR_SPACEPAD;
  std::string packed(static_cast<std::size_t>(count * width), '\0');
  hdf5_try<InputError>(read_raw_strings(source, memory.id(), packed.data()), "{}: cannot be read",
                       source.location);
  for (hssize_t i = 0; i < count; ++i) {
    std::string text =
        packed.substr(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
    text.resize(std::min(text.find('\0'), text.size()));
    if (space_padded) text.resize(text.find_last_not_of(' ') + 1);
    strings.push_back(std::move(text));
  }
  return strings;
}

}  // namespace detail

namespace {

using detail::hdf5_try;

Hdf5Value read_value(hid_t attribute, const std::string& location) {
  const Hdf5Handle type(hdf5_try<InputError>(H5Aget_type(attribute), "{}: no type", location));
  const Hdf5Handle space(hdf5_try<InputError>(H5Aget_space(attribute), "{}: no extents", location));
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  validate(count == 1, "{}: has {} values, but must have one", location, count);
  switch (H5Tget_class(type.id())) {
    case H5T_STRING:
      return detail::read_string_elements({attribute, true, type.id(), space.id(), location}).at(0);
    case H5T_FLOAT: {
      double value = 0;
      hdf5_try<InputError>(H5Aread(attribute, H5T_NATIVE_DOUBLE, &value), "{}: cannot be read",
                           location);
      return value;
    }
    case H5T_ENUM:
    case H5T_INTEGER: {
      validate(H5Tget_size(type.id()) <= 8,
               "{}: is an integer of more than 64 bits; at most 64 can be read", location);
      const bool is_uint64 = H5Tget_class(type.id()) == H5T_INTEGER &&
                             H5Tget_size(type.id()) == 8 && H5Tget_sign(type.id()) == H5T_SGN_NONE;
      std::uint64_t unsigned_value = 0;
      if (is_uint64)
        hdf5_try<InputError>(H5Aread(attribute, H5T_NATIVE_UINT64, &unsigned_value),
                             "{}: cannot be read", location);
      if (unsigned_value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return unsigned_value;
      std::int64_t value = 0;
      hdf5_try<InputError>(H5Aread(attribute, H5T_NATIVE_INT64, &value), "{}: cannot be read",
                           location);
      return value;
    }
    default: throw InputError(location + ": is neither a number nor a string");
  }
}

std::string attribute_location(const std::string& path, const std::string& object,
                               const std::string& name) {
  return fmt::format("{}: attribute {} of {}", path, printable(name), printable(object));
}

}  // namespace

bool Hdf5File::has_attribute(const std::string& object, const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Handle owner = open_object(object);
  return hdf5_try<InputError>(H5Aexists(owner.id(), name.c_str()), "{}",
                              attribute_location(path_, object, name)) > 0;
}

std::optional<Hdf5Value> Hdf5File::attribute(const std::string& object,
                                             const std::string& name) const {
  const Hdf5Lock lock;
  const std::string location = attribute_location(path_, object, name);
  const Hdf5Handle owner = open_object(object);
  if (hdf5_try<InputError>(H5Aexists(owner.id(), name.c_str()), "{}", location) == 0)
    return std::nullopt;
  const Hdf5Handle handle(hdf5_try<InputError>(H5Aopen(owner.id(), name.c_str(), H5P_DEFAULT),
                                               "{}: cannot be opened", location));
  return read_value(handle.id(), location);
}

std::vector<std::string> Hdf5File::attribute_names(const std::string& object) const {
  const Hdf5Lock lock;
  const Hdf5Handle owner = open_object(object);
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  hdf5_try<InputError>(H5Aiterate2(owner.id(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names),
                       "{}: attributes of {}", path_, printable(object));
  return names;
}

std::map<std::string, Hdf5Value> Hdf5File::attributes(const std::string& object) const {
  const Hdf5Lock lock;
  const Hdf5Handle owner = open_object(object);
  std::map<std::string, Hdf5Value> values;
  for (const std::string& name : attribute_names(object)) {
    const std::string location = attribute_location(path_, object, name);
    const Hdf5Handle handle(hdf5_try<InputError>(H5Aopen(owner.id(), name.c_str(), H5P_DEFAULT),
                                                 "{}: cannot be opened", location));
    values.emplace(name, read_value(handle.id(), location));
  }
  return values;
}

std::int64_t Hdf5File::attribute_int(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = attribute_location(path_, object, name);
  validate(value.has_value(), "{}: is missing (a whole number)", location);
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr, "{}: must be a whole number below 2^63", location);
  return *signed_value;
}

std::uint64_t Hdf5File::attribute_uint(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = attribute_location(path_, object, name);
  validate(value.has_value(), "{}: is missing (an unsigned whole number)", location);
  if (const auto* unsigned_value = std::get_if<std::uint64_t>(&*value)) return *unsigned_value;
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr && *signed_value >= 0, "{}: must be an unsigned whole number",
           location);
  return static_cast<std::uint64_t>(*signed_value);
}

double Hdf5File::attribute_double(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = attribute_location(path_, object, name);
  validate(value.has_value(), "{}: is missing (a number)", location);
  if (const auto* real = std::get_if<double>(&*value)) return *real;
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr, "{}: must be a number", location);
  return static_cast<double>(*signed_value);
}

std::string Hdf5File::attribute_string(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = attribute_location(path_, object, name);
  validate(value.has_value(), "{}: is missing (a string)", location);
  const auto* text = std::get_if<std::string>(&*value);
  validate(text != nullptr, "{}: must be a string", location);
  return *text;
}

std::vector<std::string> Hdf5File::read_strings(const std::string& object) const {
  const Hdf5Lock lock;
  const std::string location = location_of(object);
  const Hdf5Description description = describe(object);
  validate(description.kind == Hdf5Description::Kind::text && description.shape.size() <= 1,
           "{}: must be a list of strings", location);
  const Hdf5Handle handle = open_object(object);
  const Hdf5Handle type(hdf5_try<InputError>(H5Dget_type(handle.id()), "{}: no type", location));
  const Hdf5Handle space(
      hdf5_try<InputError>(H5Dget_space(handle.id()), "{}: no extents", location));
  return detail::read_string_elements({handle.id(), false, type.id(), space.id(), location});
}

std::vector<std::string> Hdf5File::attribute_strings(const std::string& object,
                                                     const std::string& name) const {
  const Hdf5Lock lock;
  const std::string location = attribute_location(path_, object, name);
  const Hdf5Handle owner = open_object(object);
  const Hdf5Handle handle(hdf5_try<InputError>(H5Aopen(owner.id(), name.c_str(), H5P_DEFAULT),
                                               "{}: cannot be opened", location));
  const Hdf5Handle type(hdf5_try<InputError>(H5Aget_type(handle.id()), "{}: no type", location));
  const Hdf5Handle space(
      hdf5_try<InputError>(H5Aget_space(handle.id()), "{}: no extents", location));
  validate(H5Tget_class(type.id()) == H5T_STRING, "{}: must be strings", location);
  return detail::read_string_elements({handle.id(), true, type.id(), space.id(), location});
}

}  // namespace trireme::io
