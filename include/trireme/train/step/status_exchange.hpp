// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/update/step_status.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::train {

/// A rank's requests for the end of a step. The status exchange combines the requests of all ranks
/// with a bitwise or, so that all ranks act on them at the same step.
enum StopFlag : std::uint32_t {
  flag_none = 0,
  /// A signal, a STOP file or the end of the job: write a checkpoint and exit with code 75.
  flag_stop = 1,
  flag_finish = 2,      ///< run.stop is a time and has passed.
  flag_checkpoint = 4,  ///< checkpoint.every is a time and has passed.
  /// No request: this rank's thread is still writing its part of a background checkpoint.
  flag_saving = 8,
  /// Samples cannot be read: this rank computes with padding. The loss of the step is NaN, and the
  /// run ends after it.
  flag_unreadable = 16
};

/// Adds the status of a step over all ranks, once a step: loss sums and stop requests.
///
/// The statuses are added on the device, so that the update kernel can decide there whether the
/// step is applied. The host reads the result one step later, without stopping the device:
///
///   host    post(n)         post(n + 1)     wait() -> n     post(n + 2)     wait() -> n + 1
///   device  | pack, sum, read, copy to host (n)     | the same (n + 1)      | ...
///
/// The message has the same size at any number of ranks. The sum follows the axes of the mesh
/// (comm::SumOrder::axes): it takes some messages for each doubling of the ranks, and its bits do
/// not depend on nodes or libraries.
class StatusExchange {
 public:
  StatusExchange(const parallel::Mesh& mesh, comm::Engine& engine, Device device, Arena& memory);
  // The engine reads the axes of a posted sum.
  StatusExchange(const StatusExchange&) = delete;
  StatusExchange& operator=(const StatusExchange&) = delete;

  /// Enqueues the exchange of one step: packs this rank's status, adds all, reads the totals.
  ///
  /// `sums` [micro-batches, 4] are this rank's loss sums; undefined on ranks outside the last
  /// stage. `stop_requests` are bits of StopFlag. `gradient_squares`: as in
  /// kernels::PackStatusArgs. Collective over the world. At most two exchanges may be in flight.
  void post(ops::Context& context, const Tensor& sums, std::uint64_t stop_requests,
            const double* gradient_squares = nullptr);
  /// Returns the sums over all replicas of the latest posted step, in memory that kernels can read.
  /// The loss is NaN if a rank raised flag_unreadable.
  const ops::SampleSums* sums() const { return totals_ == nullptr ? nullptr : &totals_->sums; }

  /// Waits for the oldest unread exchange and returns its totals; zeros on the meta device.
  ops::StepTotals wait();

 private:
  comm::Communicator world_;
  comm::Engine& engine_;
  std::array<comm::RankAxis, 3> axes_;
  /// The tensor ranks of a group have the same loss sums: only the first one counts them.
  bool counts_samples_;
  Tensor bytes_;  ///< This rank's status and then its sum; memory for the sum; the totals.
  ops::StepStatus *status_ = nullptr, *scratch_ = nullptr;
  ops::StepTotals* totals_ = nullptr;
  parallel::AsyncReadback<std::byte> readback_;
};

}  // namespace trireme::train
