#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Host memory for a copy of this rank's pieces, kept from one checkpoint to the next: its pages are there the second time.
class CopyBuffer {
 public:
  /// At least so many elements; what was in it may be gone.
  float* take(std::int64_t elements);

 private:
  std::unique_ptr<float[]> values_;
  std::int64_t elements_ = 0;
};

/// Elements of a copy of these pieces.
std::int64_t copy_elements(std::span<const Piece> pieces);

/// A checkpoint that a thread writes while its caller trains on, with the same bytes as write() gives. The thread calls neither HDF5 nor MPI: it
/// takes digests, writes with pwrite to the places that HDF5 gave, flushes, reads back and seals. In between, on the caller's thread and with all
/// ranks, stand what is collective: the layout by HDF5, agreement after each part, the rename.
class BackgroundWrite {
 public:
  /// Checks pieces and room and copies the pieces' values: from here on they may change; specs and parts stay in use. Collective. Throws as
  /// write() does. `buffer` is in use until this object is gone.
  BackgroundWrite(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces, const Info& info, CopyBuffer& buffer);
  /// Waits for the thread. The temporary file is removed where the checkpoint is not in place.
  ~BackgroundWrite();
  BackgroundWrite(const BackgroundWrite&) = delete;
  BackgroundWrite& operator=(const BackgroundWrite&) = delete;

  /// Whether this rank's thread still works on its part.
  bool busy() const;
  /// Ends a part (waits where the thread is busy) and begins the next. Returns whether the file is in place. Collective; an error on one rank is
  /// thrown on all, and then nothing but the destructor may follow.
  bool advance();
  /// All parts that are left. Collective.
  WriteReport finish();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace trireme::checkpoint
