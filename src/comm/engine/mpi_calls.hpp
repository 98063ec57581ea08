// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

#include "calls.hpp"
#include "comm/mpi_communicator.hpp"

namespace trireme::comm {

/// The MPI calls of the current step of one request, on host memory. No function blocks.
/// MPI counts are `int`, so messages above `max_count` take several calls, cut in the same way on
/// all ranks.
class MpiCalls final : public Calls {
 public:
  MpiCalls();
  /// Starts a new request on `group` whose messages use `tag`.
  /// `max_count`: maximum bytes of a message, or elements of a sum, in one MPI call.
  void begin(const MpiCommunicator& group, int tag, std::int64_t max_count);

  using Calls::receive;
  using Calls::send;
  void send(std::span<const std::byte> data, int to) override;
  void receive(std::span<std::byte> data, int from) override;
  void all_reduce(float* data, std::int64_t count) override;
  void add(const float* from, float* to, std::int64_t count) override;
  void add(const BFloat16* from, float* to, std::int64_t count) override;
  void add(const double* from, double* to, std::int64_t count) override;
  void copy(const float* from, float* to, std::int64_t count) override;
  void narrow(const float* from, BFloat16* to, std::int64_t count) override;
  void widen(const BFloat16* from, float* to, std::int64_t count) override;

  /// Polls: returns whether all calls have ended. Throws Failure when MPI failed or a message has
  /// an unexpected length.
  bool all_done();
  /// Returns the bytes that the request has sent so far. MPI's own sum counts as a ring algorithm.
  double bytes_sent() const { return bytes_sent_; }

 private:
  /// `expected_bytes`: length of the message; not_receiving for calls that receive no message.
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
