// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/state_copy.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::checkpoint {

/// The host memory of one rank that a background checkpoint uses for values.
struct BackgroundMemory {
  Tensor copy;  ///< copy of this rank's slices, float32
  /// Bytes. The thread reorders rows and reads the file back through this buffer, of at least 4
  /// MiB. It grows with the largest channels-last slice, to at most 64 MiB or one row.
  Tensor staging;
};
/// Allocates the memory of one background checkpoint of these slices in `arena`. With a planning
/// arena (DeviceKind::meta) it only measures the bytes.
BackgroundMemory allocate_background_memory(Arena& arena, std::span<const TensorSlice> slices);

/// Writes one checkpoint on a thread while training continues. The file has the same bytes as one
/// of write().
///
/// The thread makes no MPI call. All collective work runs on the caller's thread, in the
/// constructor and in advance():
///
///   caller: constructor          thread, until the next advance()   caller: in advance()
///   plan, check free space,
///   enqueue the copies        -> wait for the copies, digests    -> sum of the digests
///                                rank 0 lays out the file        -> broadcast of the offsets
///                                write the values, flush         -> (nothing)
///                                read the file back              -> sum and compare digests
///                                rank 0 seals and renames        -> returns true
///
/// Rank 0's thread lays out the file with HDF5, under the lock of src/io. All ranks write values
/// with pwrite at the offsets that HDF5 chose. The Saver of src/train calls advance() between
/// steps, when no rank is busy().
class BackgroundWrite {
 public:
  /// Plans the file, checks the free disk space, enqueues the copies of the slices' values and
  /// starts the thread. Collective. Does not wait for the copies on a GPU: training may update the
  /// values after `copy.wait_before_update()`. `slices`' specs and partitions must outlive this
  /// object; their stream must be `copy.compute()`. Allocates allocate_background_memory() from
  /// `copy.memory()`; the destructor frees it. Rank 0's thread calls `publish` at the end. Throws
  /// the same errors as write().
  BackgroundWrite(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, const Info& info, StateCopy& copy,
                  const Publisher& publish = commit);
  /// Waits for the thread. Removes the temporary file if the checkpoint was not published.
  ~BackgroundWrite();
  BackgroundWrite(const BackgroundWrite&) = delete;
  BackgroundWrite& operator=(const BackgroundWrite&) = delete;

  /// Returns whether this rank's thread still works on the current phase.
  bool busy() const;
  /// Ends the current phase and starts the next one. Waits if this rank's thread is still busy.
  /// Returns whether the checkpoint is published under its final name. Collective. An error on one
  /// rank is thrown on all ranks; after that only the destructor may be called.
  bool advance();
  /// Runs all remaining phases, waiting for each, and returns the report. Collective.
  WriteReport finish();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace trireme::checkpoint
