// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::train {

class ActivationStore;

/// Device and host memory of parallel.offload = "activations".
///
/// The device holds two windows: the activations of the blocks that run now. Host memory holds
/// those of all other blocks. A rank runs one block at a time, so the windows serve all
/// micro-batches in flight.
class OffloadWindows {
 public:
  /// Backward of a block reads its own activations and its input, which the previous block stored.
  static constexpr int count = 2;

  OffloadWindows(Device device, const std::int64_t (&bytes)[count], Device host,
                 std::int64_t host_bytes, Pages pages)
      : windows_{{Arena(device, "activation window 0", bytes[0])},
                 {Arena(device, "activation window 1", bytes[1])}},
        host_(host, "host activations", host_bytes, pages) {}

  std::int64_t peak_bytes(int window) const { return windows_[window].arena.peak_bytes(); }
  std::int64_t host_peak_bytes() const { return host_.peak_bytes(); }

 private:
  friend class ActivationStore;
  struct Window {
    Arena arena;
    /// Owner of the part in this window; null: the window is empty.
    ActivationStore* owner = nullptr;
    int part = 0;
  };
  Window windows_[count];
  Arena host_;
};

/// Stores the activations of one micro-batch between forward and backward through a chunk, in
/// parts.
///
/// Part 0 is the chunk's input; part i + 1 holds what block i saves, including its output. Without
/// windows all parts follow each other in the micro-batch's own arena. With windows part i uses
/// window i % 2, always at the same addresses. It is copied to a fixed place in host memory when
/// another part needs the window, and copied back before its backward:
///
///   forward    part 0    part 1    part 2              part 3              backward of part 3
///   window 0   write 0             evict 0, write 2                        2 is still here
///   window 1             write 1                       evict 1, write 3    3 is still here
///
/// The last two parts are not copied if backward follows at once.
class ActivationStore {
 public:
  /// `windows` is null without offload; then all parts come from `own`.
  ActivationStore(OffloadWindows* windows, Arena& own, int parts)
      : windows_(windows), own_(own), host_parts_(static_cast<std::size_t>(parts)) {}
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  /// Returns the arena in which forward writes this part from now on.
  Arena& begin_part(ops::Context& context, int part);
  /// Copies the part back to its window if it was evicted. It stays there until another part needs
  /// the window.
  void acquire(ops::Context& context, int part);
  /// Marks the part as no longer needed, so that it is not evicted to the host.
  void release(int part);
  /// Returns the tensor in memory that is not evicted: itself, or a copy if there are windows.
  /// Valid until the next forward in the same slot. Used for outputs that are being sent.
  Tensor copy_for_send(ops::Context& context, const Tensor& tensor) const;

 private:
  OffloadWindows::Window& window(int part) const {
    return windows_->windows_[part % OffloadWindows::count];
  }
  bool holds(const OffloadWindows::Window& window, int part) const {
    return window.owner == this && window.part == part;
  }
  OffloadWindows::Window& take_window(ops::Context& context, int part);
  void evict(ops::Context& context, OffloadWindows::Window& window);
  OffloadWindows* windows_;
  Arena& own_;
  /// By part: its place in host memory, allocated at the first eviction.
  std::vector<Tensor> host_parts_;
};

}  // namespace trireme::train
