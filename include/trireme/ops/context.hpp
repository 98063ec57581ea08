// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/ops/algorithm_table.hpp"
#include "trireme/ops/op.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::ops {

/// Work that ops have counted since the last reset. It depends on shapes only, so all devices, meta
/// included, count alike.
struct Counters {
  /// Multiplications and additions of matrix products and convolutions: 2 for each multiply-add.
  double flops = 0;
  /// Lower bound of the memory traffic of all ops in bytes: each op reads its inputs and writes its
  /// outputs once.
  double bytes = 0;
  std::int64_t calls = 0;
};

/// The trials of algorithms since the start: problems for which several were timed, problems for
/// which no time was left, and the seconds that building and timing took.
struct TrialReport {
  std::int64_t problems = 0, refused = 0;
  double seconds = 0;
};

/// The work of one call of an op.
struct OpWork {
  /// As in Counters: operations, 2 for each multiply-add; lower bound of the memory traffic.
  double flops = 0, bytes = 0;
  /// The part of `flops` that repeats work of the forward pass instead of storing its result.
  double recomputed_flops = 0;
  /// The shape of the op's matrix products: `products` of [m, k] times [k, n]. Zeros without one.
  /// A convolution counts as its matrix product, attention as the first product of each head.
  std::int64_t products = 0, m = 0, n = 0, k = 0;
  /// The type of the operands.
  ElementType type = ElementType::float32;
  bool float8 = false;
};

/// One call of an op and its work.
struct OpCall : OpWork {
  Op op;
};
using OpObserver = std::function<void(const OpCall&)>;

/// Returns the device kind whose library and kernels do the work. An emulated device computes with
/// the CPU's.
constexpr DeviceKind target_of(DeviceKind kind) {
  return kind == DeviceKind::emulated ? DeviceKind::cpu : kind;
}

/// Options of a device's libraries and kernels. The CPU ignores `deterministic` and `tfloat32`: its
/// results have the same bits in every run, in float32.
struct ContextOptions {
  /// Same bits in every run. On CUDA: the library's first algorithm instead of the fastest, and no
  /// sums without a fixed order.
  bool deterministic = false;
  /// The tensor cores may keep 10 bits of the mantissa of the operands of float32 products and
  /// convolutions (NVIDIA's TF32).
  bool tfloat32 = false;
  /// Layers that support float8 products (Linear::float8) request them.
  bool float8 = false;
  /// On CUDA an op may use a library's fused operation, or a matrix product for a 1x1 convolution,
  /// where that is faster. On the CPU, convolutions may use Winograd's algorithm, and their weight
  /// gradients matrix products; other ops ignore it. False: every op runs its plain products and
  /// kernels, to find the op with a wrong result.
  bool fusions = true;
  /// The head of a language model whose vocabulary is not split uses fused_softmax(), on logits in
  /// compute precision. Off until a GPU has confirmed the kernel.
  bool fused_softmax = false;
  /// The last batch norm of a residual block and the norm of its shortcut run as one
  /// (batch_norm_apply_joined()). Off until a GPU has confirmed the kernels.
  bool joined_norms = false;
};

class NarrowGradients;

/// The resources that every op takes as its first argument: stream, workspace, the device library's
/// handles and its cache of prepared primitives. Not thread-safe.
///
/// An op first checks shapes and counts its work. On a meta context it then only takes its
/// workspace, which measures the memory that a plan needs, and returns. On other devices it
/// enqueues kernels and returns without waiting for them.
class Context {
 public:
  /// `workspace`: temporaries of one op, released at its end. `library`: memory that ops keep, such
  /// as weights in the device library's own format. `target`: the device whose memory needs are
  /// measured if the stream's device is meta; otherwise target_of(the stream's device). Throws
  /// Failure for a CUDA stream if the libraries find no device, or if the program was built without
  /// CUDA.
  Context(Stream stream, Arena& workspace, Arena& library, DeviceKind target,
          ContextOptions options = {});
  Context(Stream stream, Arena& workspace, Arena& library)
      : Context(stream, workspace, library, target_of(stream.device.kind)) {}
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Stream& stream() const { return stream_; }
  bool meta() const { return stream_.device.kind == DeviceKind::meta; }
  DeviceKind target() const { return target_; }
  bool deterministic() const { return options_.deterministic; }
  bool float8() const { return options_.float8; }
  bool fusions() const { return options_.fusions; }
  bool fused_softmax() const { return options_.fused_softmax; }
  bool joined_norms() const { return options_.joined_norms; }
  Arena& workspace() const { return workspace_; }
  Arena& library() const { return library_; }
  Counters& counters() { return counters_; }
  /// Returns the table of algorithms that the device library reads and extends. Add the table of an
  /// earlier start before the first op.
  AlgorithmTable& algorithms() { return algorithms_; }
  TrialReport trials() const;
  /// Returns where ops leave gradients of weights that their library wrote in 16 bits. Null: they
  /// convert such gradients at once.
  NarrowGradients* narrow_gradients() const { return narrow_gradients_; }
  void set_narrow_gradients(NarrowGradients* gradients) { narrow_gradients_ = gradients; }

  /// Counts one op with its work, or with its bytes of memory traffic alone, unless a CountingPause
  /// exists.
  void count(const Op& op, const OpWork& work);
  void count(const Op& op, std::integral auto bytes) { count(op, static_cast<double>(bytes)); }
  void count(const Op& op, double bytes) { count(op, {.bytes = bytes}); }
  /// Counts one op. Returns whether that is all: on the meta device.
  bool counts_only(const Op& op, auto bytes) {
    count(op, bytes);
    return meta();
  }
  /// Calls `observer` for each op that is counted. An empty one ends this.
  void set_op_observer(OpObserver observer) { op_observer_ = std::move(observer); }

  /// State of the device library, defined in src/ops/dispatch/backend.hpp: oneDNN on the CPU,
  /// cuBLASLt and cuDNN on CUDA. For ops only.
  struct Backend;
  Backend& backend() { return *backend_; }

 private:
  Stream stream_;
  Arena& workspace_;
  Arena& library_;
  DeviceKind target_;
  ContextOptions options_;
  friend class CountingPause;
  Counters counters_;
  int counting_pauses_ = 0;
  NarrowGradients* narrow_gradients_ = nullptr;
  OpObserver op_observer_;
  AlgorithmTable algorithms_;
  std::unique_ptr<Backend> backend_;
};

/// Copies of a layer's weight in the device library's own format, valid until the next update. The
/// layer owns this struct. The op fills it at the first use after the weight has changed; the
/// memory comes from Context::library() once, and once more if a later format is larger.
struct PreparedWeight {
  /// One prepared copy: its bytes, the weight's version that it was made from (0: never made) and
  /// the library's format number.
  struct Copy {
    Tensor bytes;
    std::uint64_t version = 0;
    std::uint32_t format = 0;
  };
  /// The copies that the forward and the backward-data primitive read.
  Copy forward, backward;
};

/// A weight as ops read it: its values in compute precision and plain order, its version (1 or
/// more; changes with every update) and its prepared copies. `prepared` may be null: the copy is
/// then made at every call.
struct Weight {
  Tensor value;
  std::uint64_t version = 1;
  PreparedWeight* prepared = nullptr;
};

/// Says how an op writes a gradient: a step's first micro-batch assigns (=), later ones add (+=).
enum class Write : bool { assign, add };

}  // namespace trireme::ops
