#pragma once

#include <memory>
#include <span>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/state_copy.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::checkpoint {

/// All host memory of a rank that a checkpoint written beside training takes for values.
struct BackgroundMemory {
  Tensor copy;     ///< float32, of this rank's pieces
  Tensor staging;  ///< bytes: what the thread turns rows and reads the file back through; at least
                   ///< 4 MiB, at most 64 MiB or one row
};
BackgroundMemory allocate_background_memory(Arena& arena, std::span<const TensorSlice> slices);

/// A checkpoint that a thread writes while its caller trains on, with the same bytes as write()
/// gives. The thread calls no MPI: it takes digests, lays the file out by HDF5 (rank 0's, under the
/// lock of src/io), writes with pwrite to the places that HDF5 gave, flushes, reads back, seals and
/// renames. In between, on the caller's thread and with all ranks, stands what is collective:
/// agreement after each part.
class BackgroundWrite {
 public:
  /// Checks pieces and room and gives the copies of the pieces' values, for which the thread waits:
  /// from here on what comes behind `copy.may_change()` may change them; specs and parts stay in
  /// use. The pieces' stream is the compute stream of `copy`. Collective. Throws as write() does.
  /// take_background_memory() is called on the memory of `copy`, which is given back when this
  /// object is gone.
  BackgroundWrite(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, const Info& info, StateCopy& copy);
  /// Waits for the thread. The temporary file is removed where the checkpoint is not in place.
  ~BackgroundWrite();
  BackgroundWrite(const BackgroundWrite&) = delete;
  BackgroundWrite& operator=(const BackgroundWrite&) = delete;

  /// Whether this rank's thread still works on its part.
  bool busy() const;
  /// Ends a part (waits where the thread is busy) and begins the next. Returns whether the file is
  /// in place. Collective; an error on one rank is thrown on all, and then nothing but the
  /// destructor may follow.
  bool advance();
  /// All parts that are left. Collective.
  WriteReport finish();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace trireme::checkpoint
