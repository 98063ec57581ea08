#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/step_status.hpp"
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

/// Exchanges the status of a step between all ranks, once a step: loss sums, stop requests and busy
/// seconds.
///
/// The statuses are gathered and summed on the device, so that the update kernel can decide there
/// whether the step is applied. The host reads the result one step later, without stopping the
/// device:
///
///   host    post(n)         post(n + 1)     wait() -> n     post(n + 2)     wait() -> n + 1
///   device  | pack, all-gather, sum, copy to host (n)  | the same (n + 1)  | ...
class StatusExchange {
 public:
  StatusExchange(const parallel::Mesh& mesh, comm::Engine& engine, Device device, Arena& memory);

  /// Enqueues the exchange of one step: packs this rank's status, gathers all, sums the
  /// losses.
  ///
  /// `sums` [micro-batches, 4] are this rank's loss sums; undefined on ranks outside the last
  /// stage. `stop_requests` are bits of StopFlag. `busy_seconds` is its
  /// compute time. `gradient_squares`: as in kernels::PackStatusArgs. Collective over the world. At
  /// most two exchanges may be in flight.
  void post(ops::Context& context, const Tensor& sums, std::uint64_t stop_requests,
            double busy_seconds, const double* gradient_squares = nullptr);
  /// Returns the sums over all replicas of the latest posted step, in memory that kernels can read.
  /// The loss is NaN if a rank raised flag_unreadable.
  const ops::SampleSums* sums() const { return reduce_arguments_.sums; }

  struct Totals {
    ops::SampleSums sums;             ///< Over all replicas.
    std::uint64_t stop_requests = 0;  ///< Bitwise or over all ranks.
  };
  /// Waits for the oldest unread exchange and returns its totals. Writes the status of each world
  /// rank to `statuses` [world ranks].
  Totals wait(std::vector<ops::StepStatus>& statuses);

 private:
  comm::Communicator world_;
  comm::Engine& engine_;
  /// Byte offset of each rank's status in `bytes_`; the last entry is the size of all of them.
  std::vector<std::int64_t> message_bounds_;
  /// Arguments of the sum: one rank per tensor group of the last stage holds loss sums.
  ops::ReduceStatusArgs reduce_arguments_;
  Tensor bytes_;  ///< All statuses by world rank, followed by the sums over replicas.
  ops::StepStatus* statuses_ = nullptr;
  parallel::AsyncReadback<std::byte> readback_;
};

}  // namespace trireme::train
