#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// What all_reduce adds up.
enum class Element : std::uint8_t { float64, int64, uint64 };

/// A form of communicator: what the calls of Communicator do.
struct Communicator::Implementation {
  Implementation(int rank_in, int size_in) : rank(rank_in), size(size_in) {}
  virtual ~Implementation() = default;
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  virtual void barrier() = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual void all_reduce(void* data, std::size_t count, Element element, Reduction reduction) = 0;
  virtual void send(std::span<const std::byte> data, int to, int tag) = 0;
  virtual void receive(std::span<std::byte> data, int from, int tag) = 0;
  /// Null for a rank with a negative colour.
  virtual std::shared_ptr<Implementation> split(int color, int key) = 0;
  virtual const void* mpi_handle() const { return nullptr; }

  const int rank, size;
  double bytes = 0;  ///< meta: what would have been carried
};

}  // namespace trireme::comm
