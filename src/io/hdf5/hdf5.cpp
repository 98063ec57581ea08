// SPDX-License-Identifier: Apache-2.0
//
// Lock, handles, types and error texts of the HDF5 wrapper.
//
// Writing is in hdf5_write.cpp. hdf5_indexing.cpp and hdf5_values.cpp read.

#include "trireme/io/hdf5/hdf5.hpp"

#include <mutex>

#include "hdf5_detail.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/versions.hpp"

namespace trireme::io {
namespace detail {
namespace {

std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;  // one per process, since HDF5's state is global
  return mutex;
}

/// Shortens the error text of HDF5's file driver, which has two lines of times, addresses and
/// sizes. Keeps the operation and the system's reason.
std::string shorten_error_text(const std::string& words) {
  constexpr std::string_view before_reason = "error message = '";
  const std::size_t details = words.find(": time = "), reason = words.find(before_reason);
  if (details == std::string::npos || reason == std::string::npos) return words;
  const std::size_t begin = reason + before_reason.size();
  return words.substr(0, details) + ": " + words.substr(begin, words.find('\'', begin) - begin);
}

/// The descriptions of an error.
struct ErrorText {
  std::string reasons;
  std::string version;  ///< about the version of a part of the file; the rest follows from it
};

herr_t append_error(unsigned, const H5E_error2_t* error, void* out) {
  ErrorText& text = *static_cast<ErrorText*>(out);
  const std::string_view description = error->desc != nullptr ? error->desc : "";
  const bool is_of_version =
      description.find("version number") != std::string_view::npos &&
      (description.starts_with("bad") || description.starts_with("unknown") ||
       description.starts_with("wrong"));
  if (is_of_version && text.version.empty()) text.version = description;
  if (text.reasons.size() > 400) return 0;
  if (!text.reasons.empty()) text.reasons += "; ";
  text.reasons +=
      error->desc != nullptr ? shorten_error_text(error->desc) : "error without a description";
  return 0;
}

}  // namespace

std::string hdf5_error_text() {
  ErrorText text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, append_error, &text);
  H5Eclear2(H5E_DEFAULT);
  if (!text.version.empty())
    return fmt::format(
        "a part of it has a version that HDF5 {} does not know ({}): a newer HDF5 wrote the file, "
        "or it is damaged; `h5repack OLD.h5 NEW.h5` of the newer one writes the oldest form",
        hdf5_version(), text.version);
  return text.reasons.empty() ? "HDF5 reported no reason" : "HDF5: " + text.reasons;
}

/// Returns the IEEE type of 16 bits, which HDF5 before 1.14.4 does not name.
static hid_t float16_type() {
  static const hid_t type = [] {
    const hid_t made = H5Tcopy(H5T_IEEE_F32LE);
    hdf5_try<Failure>(H5Tset_fields(made, 15, 10, 5, 0, 10), "HDF5 has no float16");
    hdf5_try<Failure>(H5Tset_size(made, 2), "HDF5 has no float16");
    hdf5_try<Failure>(H5Tset_ebias(made, 15), "HDF5 has no float16");
    return made;
  }();
  return type;
}

hid_t memory_type(Hdf5Number number) {
  switch (number) {
    case Hdf5Number::uint8: return H5T_NATIVE_UINT8;
    case Hdf5Number::uint16: return H5T_NATIVE_UINT16;
    case Hdf5Number::uint32: return H5T_NATIVE_UINT32;
    case Hdf5Number::int32: return H5T_NATIVE_INT32;
    case Hdf5Number::int64: return H5T_NATIVE_INT64;
    case Hdf5Number::uint64: return H5T_NATIVE_UINT64;
    case Hdf5Number::float16: return float16_type();
    case Hdf5Number::float32: return H5T_NATIVE_FLOAT;
    case Hdf5Number::float64: return H5T_NATIVE_DOUBLE;
  }
  return -1;
}

hid_t file_type(Hdf5Number number) {
  switch (number) {
    case Hdf5Number::uint8: return H5T_STD_U8LE;
    case Hdf5Number::uint16: return H5T_STD_U16LE;
    case Hdf5Number::uint32: return H5T_STD_U32LE;
    case Hdf5Number::int32: return H5T_STD_I32LE;
    case Hdf5Number::int64: return H5T_STD_I64LE;
    case Hdf5Number::uint64: return H5T_STD_U64LE;
    case Hdf5Number::float16: return float16_type();
    case Hdf5Number::float32: return H5T_IEEE_F32LE;
    case Hdf5Number::float64: return H5T_IEEE_F64LE;
  }
  return -1;
}

}  // namespace detail

void initialize_hdf5() {
  const Hdf5Lock lock;
  detail::hdf5_try<Failure>(H5open(), "HDF5 cannot be initialized");
}

Hdf5Lock::Hdf5Lock() {
  detail::hdf5_mutex().lock();
  // Before any other call: at exit HDF5 closes files again whose close has failed, and crashes.
  static const bool is_told = H5dont_atexit() >= 0;
  static_cast<void>(is_told);
  // Stops HDF5 from printing errors: their texts go into exceptions. Thread-safe builds keep this
  // setting per thread.
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Lock::~Hdf5Lock() { detail::hdf5_mutex().unlock(); }

std::string hdf5_version() {
  const Hdf5Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  ensure(H5get_libversion(&major, &minor, &release) >= 0, "the version of HDF5: {}",
         detail::hdf5_error_text());
  return fmt::format("{}.{}.{}", major, minor, release);
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  H5Idec_ref(id_);
}

Hdf5Handle::Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
  std::swap(id_, other.id_);
  return *this;
}

void Hdf5Handle::close() {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  detail::hdf5_try<Failure>(H5Idec_ref(std::exchange(id_, -1)), "closing an HDF5 object");
}

std::int64_t size_of(Hdf5Number number) {
  switch (number) {
    case Hdf5Number::uint8: return 1;
    case Hdf5Number::uint16:
    case Hdf5Number::float16: return 2;
    case Hdf5Number::uint32:
    case Hdf5Number::int32:
    case Hdf5Number::float32: return 4;
    case Hdf5Number::int64:
    case Hdf5Number::uint64:
    case Hdf5Number::float64: return 8;
  }
  return 0;
}

std::int64_t Hdf5Box::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : count) product *= extent;
  return product;
}

Hdf5Dataset::Hdf5Dataset(Hdf5Handle handle, std::string location, std::vector<std::int64_t> shape,
                         bool collective)
    : handle_(std::move(handle)),
      location_(std::move(location)),
      shape_(std::move(shape)),
      collective_(collective) {}

Hdf5File::Hdf5File(Hdf5Handle handle, std::string path, bool collective)
    : handle_(std::move(handle)), path_(std::move(path)), collective_(collective) {}

std::string Hdf5File::location_of(const std::string& object) const {
  return path_ + (object.starts_with('/') ? ": " : ": /") + printable(object);
}

void Hdf5File::flush() {
  const Hdf5Lock lock;
  detail::hdf5_try<Failure>(H5Fflush(handle_.id(), H5F_SCOPE_GLOBAL), "{}: cannot be flushed",
                            path_);
}

void Hdf5File::close() {
  const Hdf5Lock lock;
  try {
    handle_.close();
  } catch (const Failure& failure) {
    throw Failure(path_ + ": " + failure.what());
  }
}

}  // namespace trireme::io
