// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/device/device.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/tensor/arena.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::app {

/// Memory and a context for ops on a device, or on meta, which measures the memory that they need
/// on the device kind `target`.
class OpMemory {
 public:
  OpMemory(Device device, DeviceKind target, std::int64_t tensor_bytes = 0,
           std::int64_t workspace_bytes = 0, std::int64_t library_bytes = 0);

  Tensor make(DType type, const Shape& shape) { return tensors.allocate(type, shape); }
  /// Returns a tensor of ones.
  Tensor ones(DType type, const Shape& shape);
  /// Returns the numbers 0, 7919, 2 * 7919, ... modulo `below`, as int32.
  Tensor numbers(std::int64_t count, std::int64_t below);
  /// Copies an array that an op takes by pointer into `tensors`.
  template <class T>
  const T* placed(const std::vector<T>& from) {
    const std::size_t bytes = from.size() * sizeof(T);
    return static_cast<const T*>(placed_bytes(from.data(), static_cast<std::int64_t>(bytes)));
  }

  OwnedStream stream;
  Arena tensors, workspace, library;
  ops::Context context;

 private:
  const void* placed_bytes(const void* from, std::int64_t bytes);
  std::vector<std::vector<std::byte>> tables_;  // of placed(), on meta
};

/// One op at one size. `setup` allocates its tensors and returns the call.
struct OpCase {
  using Work = std::function<void()>;
  std::string name;
  std::function<Work(OpMemory&)> setup;
};

/// The passes of a layer with a weight.
enum class LayerPass : std::uint8_t { forward, backward_data, backward_weight };

/// Returns one pass of a linear layer. Each call has a new version of the weight, as the first
/// micro-batch of a step has.
OpCase linear_case(DType type, LayerPass pass, std::int64_t rows, std::int64_t in,
                   std::int64_t out);
/// Returns one pass of a convolution over `batch` square images.
OpCase convolution_case(DType type, LayerPass pass, std::int64_t batch, std::int64_t side,
                        std::int64_t in, std::int64_t out, std::int64_t kernel,
                        std::int64_t stride = 1);
/// Returns causal self-attention.
OpCase attention_case(DType type, bool forward, std::int64_t batch, std::int64_t heads,
                      std::int64_t context, std::int64_t head_width);
/// Returns the ops that are limited by memory bandwidth, each on about `elements` numbers.
std::vector<OpCase> memory_bound_cases(DType type, std::int64_t elements);
/// The numbers that an op works on, as a matrix: rows are tokens, pixels or samples; columns the
/// width, channels or classes of a layer.
struct OpSize {
  std::int64_t rows = 0, columns = 0;
};
/// Returns the same ops, each on numbers of this size. Rotary embeddings need a multiple of 64
/// columns; images are rows of 32 x 32 pixels.
std::vector<OpCase> memory_bound_cases(DType type, const OpSize& size);
/// Returns a copy of float32 numbers.
OpCase copy_case(std::int64_t elements);

/// The call of an op, as the context counts it, and its time.
struct OpTiming {
  ops::OpCall call;
  double seconds = 0;
};

/// Measures an op: the lower quartile of `rounds` rounds of at least `min_seconds`. The calls of a
/// round take turns over several sets of tensors, so that data of large ops are not in a cache, and
/// data of small ops are.
OpTiming time_op(const OpCase& one, int rounds, double min_seconds, Device device = {});

/// Measures whole sequences of ops: the calls of one sequence, and its time.
struct SequenceTiming {
  std::vector<ops::OpCall> calls;
  double seconds = 0;
};
SequenceTiming time_sequence(const std::vector<OpCase>& sequence, int rounds, double min_seconds);

}  // namespace trireme::app
