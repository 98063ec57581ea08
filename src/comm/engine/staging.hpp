// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// The pool of pinned host buffers through which device memory reaches MPI, and the streams of the
/// copies.
///
/// Each direction has its own stream: the link of a device carries both at once, and a copy back
/// must not queue behind a copy out that waits for kernels.
class Staging {
 public:
  /// Pinned memory of one request. The main thread allocates, takes and returns buffers.
  struct Buffer {
    Buffer(Device device, std::size_t bytes)
        : memory({}, bytes, "communication: staging", Pages::pinned),
          submitted(device),
          copied_out(device),
          copied_in(device) {}

    Allocation memory;
    Event submitted;              ///< recorded on the compute stream when the request is submitted
    Event copied_out, copied_in;  ///< the ends of its last copies
  };

  explicit Staging(const Stream& compute);

  const Stream& compute() const { return compute_; }
  const Stream& copy_out_stream() const { return copy_out_stream_; }
  const Stream& copy_in_stream() const { return copy_in_stream_; }

  /// Returns the smallest free buffer of at least `bytes`; allocates one if there is none.
  /// Waits for the last copies of a reused buffer.
  Buffer& take(std::size_t bytes);
  void release(Buffer& buffer) { free_.push_back(&buffer); }
  /// Returns the bytes allocated so far.
  std::size_t bytes() const { return bytes_; }
  /// Selects the CUDA device for the calling thread.
  void select_device() const;

 private:
  Stream compute_;
  OwnedStream copy_out_stream_, copy_in_stream_;
  std::deque<Buffer> buffers_;
  std::vector<Buffer*> free_;
  std::size_t bytes_ = 0;
};

/// Moves the memory of one request from the device to pinned host memory and back.
/// Without a Staging (host memory) every function has no effect and place() returns its argument.
///
///   main thread      enqueue_copy_out()                 | continues           | finish()
///   compute stream   earlier kernels, event `submitted` | later kernels       | waits
///   copy-out stream                                     | copies |
///   polling thread                     polls is_ready()          | MPI steps, enqueue_copy_in()
///   copy-in stream                                                            | copies
class StagingCopy {
 public:
  static constexpr std::size_t alignment = 64;  // of the arrays in a buffer, in bytes

  StagingCopy() = default;
  /// `bytes`: total size of all arrays, each rounded up to `alignment`.
  StagingCopy(Staging& staging, std::size_t bytes)
      : staging_(&staging), buffer_(&staging.take(bytes)) {}

  bool staged() const { return staging_ != nullptr; }
  /// Returns the host address that represents the device memory at `place`.
  std::byte* place(std::byte* place, std::size_t bytes);
  template <class T>
  T* place(T* at, std::int64_t count) {
    return reinterpret_cast<T*>(
        place(reinterpret_cast<std::byte*>(at), static_cast<std::size_t>(count) * sizeof(T)));
  }
  /// Declares a copy to the host before the request starts (one), or back to the device after its
  /// end (at most two). The copies are enqueued later.
  void copy_out(void* host, const void* device, std::size_t bytes);
  void copy_in(void* device, const void* host, std::size_t bytes);

  /// Enqueues the copy to the host behind the current work of the compute stream.
  void enqueue_copy_out();
  /// Returns whether the copy to the host has finished. Does not wait.
  bool is_ready() const;
  /// Enqueues the copies back to the device.
  void enqueue_copy_in();
  /// Delays later work of the compute stream until these copies are done, and returns the buffer to
  /// the pool.
  void finish();

 private:
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };

  Staging* staging_ = nullptr;
  Staging::Buffer* buffer_ = nullptr;
  std::size_t bytes_placed_ = 0;
  Copy copy_out_;
  std::array<Copy, 2> copies_in_;  // two for a gather: the parts before and after the own one
  std::size_t copy_in_count_ = 0;
};

}  // namespace trireme::comm
