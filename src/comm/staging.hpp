#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// Pinned host memory through which device memory comes to MPI and back. Copies out and copies in
/// go on streams of their own, one each way: a device's link carries both at once, and what comes
/// in does not stand behind what has still to be computed before it can go out.
class Staging {
 public:
  /// Host memory of one request at a time. Taken, given back and grown by the main thread; between,
  /// it is its request's.
  struct Buffer {
    Buffer(Device device, std::size_t bytes)
        : memory({}, bytes, "communication: staging", Pages::pinned),
          submitted(device),
          copied_out(device),
          copied_in(device) {}

    Allocation memory;
    Event submitted;              ///< the end of what the compute stream had been given
    Event copied_out, copied_in;  ///< its last copies
  };

  explicit Staging(const Stream& compute);

  const Stream& compute() const { return compute_; }
  const Stream& copy_out_stream() const { return copy_out_stream_; }
  const Stream& copy_in_stream() const { return copy_in_stream_; }

  /// The smallest one that is free and large enough, else a new one. Its last copies have been
  /// waited for.
  Buffer& take(std::size_t bytes);
  void release(Buffer& buffer) { free_.push_back(&buffer); }
  std::size_t bytes() const { return bytes_; }
  /// The calling thread is about to use the device.
  void select_device() const;

 private:
  Stream compute_;
  OwnedStream copy_out_stream_, copy_in_stream_;
  std::deque<Buffer> buffers_;
  std::vector<Buffer*> free_;
  std::size_t bytes_ = 0;
};

/// The way of one request's memory to the host and back. One made without staging is of a request
/// on host memory: all stays where it is. The main thread opens it, says what stands where,
/// departs, and joins; who drives asks whether it is ready, and brings it back.
class StagingCopy {
 public:
  static constexpr std::size_t alignment = 64;  // of what stands in a buffer side by side

  StagingCopy() = default;
  /// `bytes`: of all that will be placed, each rounded up to `alignment`.
  StagingCopy(Staging& staging, std::size_t bytes)
      : staging_(&staging), buffer_(&staging.take(bytes)) {}

  bool staged() const { return staging_ != nullptr; }
  /// Where on the host the device's memory at `place` will stand.
  std::byte* place(std::byte* place, std::size_t bytes);
  template <class T>
  T* place(T* at, std::int64_t count) {
    return reinterpret_cast<T*>(
        place(reinterpret_cast<std::byte*>(at), static_cast<std::size_t>(count) * sizeof(T)));
  }
  /// To be copied to the host before the request begins, to the device when it has ended.
  void copy_out(void* host, const void* device, std::size_t bytes);
  void copy_in(void* device, const void* host, std::size_t bytes);

  /// From here on the request's memory is as the compute stream will have left it.
  void enqueue_copy_out();
  /// Whether what goes out has come.
  bool is_ready() const;
  /// What comes in is on its way.
  void enqueue_copy_in();
  /// The compute stream goes on only after that; the buffer may be taken again.
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
  std::array<Copy, 2> copies_in_;  // a gather: what stands before one's own part, and behind it
  std::size_t copy_in_count_ = 0;
};

}  // namespace trireme::comm
