// SPDX-License-Identifier: Apache-2.0
//
// A read-only HDF5 file driver that can note the place of a chunk instead of reading it.
//
// Otherwise it does what HDF5's own driver for one process ("sec2") does: positioned reads of one
// descriptor. hdf5_scan.cpp uses it.
#include "hdf5_driver.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <utility>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include "hdf5_report.hpp"

#include "trireme/io/file.hpp"
#include "trireme/io/file_form.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::io::detail {
namespace {

/// An open file. One process scans one file at a time, under Hdf5Lock.
struct ScannedFile : H5FD_t {
  ScannedFile() : H5FD_t{} {}
  File file;
  haddr_t end_of_file = 0, end_of_addresses = 0;
};

/// The place of the last chunk, while find_chunk() runs.
struct Note {
  bool active = false;
  std::int64_t offset = -1;
  std::size_t bytes = 0;
};

Note& note() {
  static Note one;
  return one;
}

/// The first failure of the disk since forget_disk_failure(). HDF5 itself reports only that a call
/// failed.
std::exception_ptr& disk_failure() {
  static std::exception_ptr one;
  return one;
}

/// Runs the body and returns `done`. Returns `failed` if it throws: exceptions must not pass
/// through HDF5.
template <class Result, class Body>
Result without_exceptions(Result done, Result failed, Body&& body) {
  try {
    body();
    return done;
  } catch (const Failure&) {
    if (!disk_failure()) disk_failure() = std::current_exception();
  } catch (const std::exception&) {
    // The file is at fault; HDF5 reports it.
  }
  return failed;
}

ScannedFile* of(H5FD_t* file) { return static_cast<ScannedFile*>(file); }
const ScannedFile* of(const H5FD_t* file) { return static_cast<const ScannedFile*>(file); }

H5FD_t* open_file(const char* path, unsigned flags, hid_t, haddr_t) {
  if ((flags & (H5F_ACC_RDWR | H5F_ACC_CREAT | H5F_ACC_TRUNC)) != 0) return nullptr;
  std::unique_ptr<ScannedFile> scanned;
  const bool is_open = without_exceptions(true, false, [&] {
    scanned = std::make_unique<ScannedFile>();
    scanned->file = File(path, File::Mode::read);
    scanned->end_of_file = static_cast<haddr_t>(scanned->file.size());
  });
  return is_open ? scanned.release() : nullptr;
}

herr_t close_file(H5FD_t* file) {
  delete of(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE;
  return 0;
}

haddr_t end_of_addresses(const H5FD_t* file, H5FD_mem_t) { return of(file)->end_of_addresses; }
herr_t set_end_of_addresses(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  of(file)->end_of_addresses = end;
  return 0;
}
haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t) { return of(file)->end_of_file; }

/// Reads `size` bytes at `address`, which counts from the start of the file. Bytes behind its end
/// are 0, as HDF5 expects.
herr_t read_file(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t size, void* out) {
  if (note().active && type == H5FD_MEM_DRAW) {
    note().offset = static_cast<std::int64_t>(address);
    note().bytes = size;
    return 0;
  }
  const haddr_t end = of(file)->end_of_file;
  const std::size_t present =
      address >= end ? 0 : static_cast<std::size_t>(std::min<haddr_t>(size, end - address));
  return without_exceptions<herr_t>(0, -1, [&] {
    of(file)->file.read_at(static_cast<std::int64_t>(address), out,
                           static_cast<std::int64_t>(present));
    std::memset(static_cast<char*>(out) + present, 0, size - present);
  });
}

herr_t refuse_write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }
herr_t lock_nothing(H5FD_t*, hbool_t) { return 0; }
herr_t unlock_nothing(H5FD_t*) { return 0; }

hid_t registered_driver() {
  static const hid_t driver = [] {
    H5FD_class_t made{};
#if H5_VERSION_GE(1, 13, 0)
    made.version = H5FD_CLASS_VERSION;
    made.value = H5_VFD_RESERVED + 77;  // numbers below H5_VFD_RESERVED are of HDF5
#endif
    made.name = "trireme_scan";
    made.maxaddr = static_cast<haddr_t>(std::numeric_limits<std::int64_t>::max());
    made.fc_degree = H5F_CLOSE_STRONG;
    made.open = open_file;
    made.close = close_file;
    made.query = query;
    made.get_eoa = end_of_addresses;
    made.set_eoa = set_end_of_addresses;
    made.get_eof = end_of_file;
    made.read = read_file;
    made.write = refuse_write;
    made.lock = lock_nothing;
    made.unlock = unlock_nothing;
    static H5FD_class_t kept = made;  // HDF5 before 1.12 keeps the pointer
    return H5FDregister(&kept);
  }();
  return hdf5_try<Failure>(driver, "HDF5 refuses a file driver");
}

/// Returns the message for a file that HDF5 does not open. `reason`: of HDF5.
std::string reason_not_opened(const std::string& path, const std::string& reason) {
  constexpr const char* of_version = "newer HDF5";  // hdf5_error_text() says what to do
  if (reason.find(of_version) != std::string::npos)
    return "the HDF5 file cannot be opened: " + reason;
  std::string damage;
  try {
    damage = damage_of_hdf5(path);
  } catch (const InputError&) {
    // HDF5 had the same reason.
  }
  if (damage.empty())
    return fmt::format("not an HDF5 file that can be read{}: {}", form_hint(recognize_form(path)),
                       reason);
  return fmt::format("{}; copy it again or make it again, or use another file ({})", damage,
                     reason);
}

}  // namespace

Hdf5Handle open_to_scan(const std::string& path) {
  const Hdf5Handle access(hdf5_try<Failure>(H5Pcreate(H5P_FILE_ACCESS), "no property list"));
  hdf5_try<Failure>(H5Pset_driver(access.id(), registered_driver(), nullptr),
                    "the file driver cannot be used");
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id());
  if (file >= 0) return Hdf5Handle(file);
  const std::string reason = hdf5_error_text();
  throw InputError(reason_not_opened(path, reason));
}

void forget_disk_failure() { disk_failure() = nullptr; }

void check_disk() {
  if (const std::exception_ptr failure = std::exchange(disk_failure(), nullptr))
    std::rethrow_exception(failure);
}

Hdf5Chunk find_chunk(hid_t dataset, const hsize_t* first) {
  std::uint32_t skipped_filters = 0;
  char nothing = 0;  // nothing is written to it
  note() = {.active = true};
  const herr_t found = H5Dread_chunk(dataset, H5P_DEFAULT, first, &skipped_filters, &nothing);
  const Note noted = note();
  note() = {};
  H5Eclear2(H5E_DEFAULT);
  if (found < 0 || noted.offset < 0 || noted.bytes > std::numeric_limits<std::uint32_t>::max())
    return {};
  return {noted.offset, static_cast<std::uint32_t>(noted.bytes), skipped_filters};
}

}  // namespace trireme::io::detail
