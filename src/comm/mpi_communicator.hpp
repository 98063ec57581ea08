#pragma once

#include <memory>
#include <string_view>

#include <mpi.h>

#include "communicator_implementation.hpp"

namespace trireme::comm {

/// Turns an MPI error code into a Failure that names the call.
void mpi_try(int code, std::string_view call);

/// Ranks that speak MPI on host memory. Its communicators are never freed (MPI_Comm_free is
/// collective, a destructor must not be): there are few of them, and MPI_Finalize ends them all.
struct MpiCommunicator final : Communicator::Implementation {
  /// Collective over `parent`: makes two duplicates of it.
  static std::shared_ptr<MpiCommunicator> duplicate(MPI_Comm parent);

  void barrier() override;
  void broadcast(std::span<std::byte> data, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void all_reduce(void* data, std::size_t count, Element element, Reduction reduction) override;
  void send(std::span<const std::byte> data, int to, int tag) override;
  void receive(std::span<std::byte> data, int from, int tag) override;
  std::shared_ptr<Implementation> split(int color, int key) override;
  const void* mpi_handle() const override { return &main; }

  MPI_Comm main;    ///< blocking calls of Communicator
  MPI_Comm engine;  ///< the engine's traffic, which therefore never meets the main thread's
  std::uint64_t engine_requests = 0;  ///< sums and gathers of the engine on this group so far:
                                      ///< their tags, alike on all its ranks

 private:
  MpiCommunicator(int rank_in, int size_in, MPI_Comm main_in, MPI_Comm engine_in)
      : Implementation(rank_in, size_in), main(main_in), engine(engine_in) {}
};

}  // namespace trireme::comm
