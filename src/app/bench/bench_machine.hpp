// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/environment.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::app {

/// Options of `trireme bench gemm`, `conv`, `ops`, `comm` and `step`.
struct BenchMachineOptions {
  std::string machine_out;  ///< the machine file that is made or updated; empty: none
  std::string machine;      ///< step: the machine whose predictions are compared
  DType type = DType::float32;
  std::vector<std::string> sizes, ops;  ///< ops: those of bench_op_sizes(); no ops: all
  std::string device;                   ///< ops: of bench_op_sizes(); empty: the program's
  bool json = false;                    ///< ops: bench_op_sizes() prints JSON
  double seconds = 0.02;                ///< least time of a round
  int rounds = 5;
};

/// Measures one class of ops of this process over a fixed grid of shapes and prints a table.
/// `subject`: "gemm", "conv" or "ops" (attention, and ops that are limited by memory bandwidth).
void bench_ops(const std::string& subject, const BenchMachineOptions& options);
/// Measures the ops that are limited by memory bandwidth on the given device and sizes, and prints
/// their GB/s beside those of a copy: the bytes that an op must move at least, by its time.
/// Throws InputError for an unknown op or a size that is not ROWSxCOLUMNS, Failure without a
/// device.
void bench_op_sizes(const BenchMachineOptions& options);
/// Measures fixed sequences of ops and prints their times beside the predicted ones.
void bench_step(const BenchMachineOptions& options);
/// Measures messages and collective operations of all ranks. Collective.
void bench_communication(const comm::Environment& environment, const BenchMachineOptions& options);

}  // namespace trireme::app
