// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// Element type of all_reduce.
enum class Element : std::uint8_t { float64, int64, uint64 };

/// Implements the calls of Communicator: LocalCommunicator (self, meta) or MpiCommunicator.
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
  /// Returns null on a rank with a negative color.
  virtual std::shared_ptr<Implementation> split(int color, int key, std::string_view part_name) = 0;
  virtual const void* mpi_handle() const { return nullptr; }
  /// Returns the group for reports: "group data (world ranks 0, 2)", "group world (4 ranks)".
  std::string describe() const;
  /// Returns a rank of the group for reports: "world rank 2 (rank 1 of group pipeline)".
  std::string describe_rank(int peer) const;

  const int rank, size;
  double bytes = 0;                 ///< meta: bytes that this rank would have sent
  Communicator::Observer observer;  ///< meta: receives the calls; may be empty
  std::string name;                 ///< of the group, for reports: "data", "world"
  std::vector<int> world_ranks;     ///< world rank of each rank; empty without MPI
};

}  // namespace trireme::comm
