// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <mpi.h>

#include "communicator_implementation.hpp"

namespace trireme::comm {

/// Throws a Failure that names the call if `code` is an MPI error.
void mpi_try(int code, std::string_view call);

/// Ranks connected by MPI, on host memory.
/// Its communicators are never freed: MPI_Comm_free is collective and a destructor must not be.
/// There are few of them, and MPI_Finalize frees them all.
struct MpiCommunicator final : Communicator::Implementation {
  /// Duplicates MPI_COMM_WORLD. From then on MPI_Abort alone uses MPI_COMM_WORLD itself, which
  /// belongs to all libraries of the process (scripts/check_layers.py). Collective.
  static std::shared_ptr<MpiCommunicator> world();

  void barrier() override;
  void broadcast(std::span<std::byte> data, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void all_reduce(void* data, std::size_t count, Element element, Reduction reduction) override;
  void send(std::span<const std::byte> data, int to, int tag) override;
  void receive(std::span<std::byte> data, int from, int tag) override;
  std::shared_ptr<Implementation> split(int color, int key, std::string_view part_name) override;
  const void* mpi_handle() const override { return &main; }

  MPI_Comm main;  ///< for the blocking calls of Communicator
  /// For the engine, whose messages thus never match those of the main thread.
  MPI_Comm engine;
  /// Number of sums and gathers submitted to the engine so far. Their tags derive from it, alike on
  /// all ranks.
  std::uint64_t engine_requests = 0;

 private:
  /// Takes `main` over and duplicates it for the engine. Collective. `name`: for reports of hangs.
  static std::shared_ptr<MpiCommunicator> adopt(MPI_Comm main, std::string_view name,
                                                std::vector<int> world_ranks);
  MpiCommunicator(int rank_in, int size_in, MPI_Comm main_in, MPI_Comm engine_in)
      : Implementation(rank_in, size_in), main(main_in), engine(engine_in) {}
};

}  // namespace trireme::comm
