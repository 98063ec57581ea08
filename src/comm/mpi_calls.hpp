#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

#include "calls.hpp"
#include "mpi_communicator.hpp"

namespace trireme::comm {

/// The MPI calls of one step of a request that are under way, on host memory. MPI counts are int:
/// what is longer than `longest` goes in several calls, which are posted at once, in order, and cut
/// alike on all ranks. Nothing here waits.
class MpiCalls final : public Calls {
 public:
  MpiCalls();
  /// A request begins: on this group, its messages under this tag. `longest`: bytes of a message,
  /// elements of a sum.
  void begin(const MpiCommunicator& group, int tag, std::int64_t max_count);

  using Calls::receive;
  using Calls::send;
  void send(std::span<const std::byte> data, int to) override;
  void receive(std::span<std::byte> data, int from) override;
  void all_reduce(float* data, std::int64_t count) override;
  void add(const float* from, float* to, std::int64_t count) override;
  void add(const BFloat16* from, float* to, std::int64_t count) override;
  void copy(const float* from, float* to, std::int64_t count) override;
  void narrow(const float* from, BFloat16* to, std::int64_t count) override;
  void widen(const BFloat16* from, float* to, std::int64_t count) override;

  /// Whether all of them have ended. Throws Failure where MPI failed, or a message was of another
  /// length.
  bool all_done();
  /// Bytes that the request sent so far (MPI's own sum: as a ring would).
  double bytes_sent() const { return bytes_sent_; }

 private:
  /// `due`: the bytes that must come; not_receiving for other calls.
  MPI_Request& add_request(std::int64_t expected_bytes);

  const MpiCommunicator* group_ = nullptr;
  int tag_ = 0;
  std::int64_t max_count_ = 0;
  double bytes_sent_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::int64_t> expected_bytes_;
};

}  // namespace trireme::comm
