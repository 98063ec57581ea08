#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::train {

class ActivationStore;

/// parallel.offload with "activations": device memory for what the blocks at work keep for their
/// backward, and host memory for what all others have kept. Only one block of a rank runs at a
/// time, so it serves all micro-batches in flight through all chunks.
class OffloadWindows {
 public:
  /// A block's backward reads what it kept itself and its input, which the block before it made.
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
    ActivationStore* owner = nullptr;  ///< whose part is in it; null: nobody's
    int part = 0;
  };
  Window windows_[count];
  Arena host_;
};

/// What a micro-batch keeps between its forward and its backward through a chunk, in parts: part 0
/// is what enters the chunk, part i + 1 what its block i makes, the output included. Without
/// windows all parts lie one behind the other in the micro-batch's own memory. With windows part i
/// lies at the begin of window i % count, always at the same addresses; when another part takes the
/// window, it goes to a place in host memory that is its own for the whole run, and comes back
/// before its block's backward. So the last two of a micro-batch that goes backward at once do not
/// travel.
class ActivationStore {
 public:
  /// `windows`: null: none.
  ActivationStore(OffloadWindows* windows, Arena& own, int parts)
      : windows_(windows), own_(own), host_parts_(static_cast<std::size_t>(parts)) {}
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  /// Where forward is to make a part from now on.
  Arena& begin_part(ops::Context& context, int part);
  /// The part is in its window when it returns, until part - count or part + count, or another
  /// micro-batch's, is asked for.
  void acquire(ops::Context& context, int part);
  /// Nothing will read the part any more: it need not be kept.
  void release(int part);
  /// A part's tensor, where it stays while others take the windows: until the next forward of the
  /// same micro-batch's place.
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
  std::vector<Tensor> host_parts_;  ///< by part, bytes: its place, taken when it first goes there
};

}  // namespace trireme::train
