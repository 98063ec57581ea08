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

/// What all ranks tell each other once a step: gathered and joined where the losses are, so that
/// the update can be judged there. The host hears of it when it asks.
class StatusExchange {
 public:
  StatusExchange(const parallel::Mesh& mesh, comm::Engine& engine, Device device, Arena& memory);

  /// Gives the device the telling of a step: `sums` [n, 4] of this rank's micro-batches (not
  /// defined(): it knows none), what it wishes for, and how long it was busy. Collective over the
  /// world. Two steps at most may be under way.
  void post(ops::Context& context, const Tensor& sums, std::uint64_t stop_requests,
            double busy_seconds);
  /// The sums of all replicas in the step told last, where kernels read them.
  const ops::SampleSums* sums() const { return reduce_arguments_.sums; }

  struct Totals {
    ops::SampleSums sums;             ///< of all replicas
    std::uint64_t stop_requests = 0;  ///< of all ranks
  };
  /// What was told first of all not heard of, for which the host waits. messages [world ranks] =
  /// what each rank told.
  Totals wait(std::vector<ops::StepStatus>& statuses);

 private:
  comm::Communicator world_;
  comm::Engine& engine_;
  std::vector<std::int64_t> message_bounds_;  ///< of the messages, in bytes
  ops::ReduceStatusArgs reduce_arguments_;  ///< of the last stage's ranks, one of each tensor group
  Tensor bytes_;  ///< the messages by world rank, behind them what is joined of them
  ops::StepStatus* statuses_ = nullptr;
  parallel::AsyncReadback<std::byte> readback_;
};

}  // namespace trireme::train
