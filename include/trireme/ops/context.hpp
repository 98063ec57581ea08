#pragma once

#include <cstdint>
#include <memory>

#include "trireme/device/device.hpp"
#include "trireme/ops/algorithm_table.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::ops {

/// What ops counted since the last reset: on every device, and exactly alike (shape only).
struct Counters {
  double flops =
      0;  ///< multiplications and additions of matrix products and convolutions, 2 a multiply-add
  double bytes = 0;  ///< bytes that the op must read and write once (its lower bound), all ops
  std::int64_t calls = 0;
};

/// The device whose library and kernels do the work of a device: an emulated one's is the host's.
constexpr DeviceKind target_of(DeviceKind kind) {
  return kind == DeviceKind::emulated ? DeviceKind::cpu : kind;
}

/// How a device's libraries may compute. On the CPU neither says anything: it has the same bits at
/// every run, in float32.
struct ContextOptions {
  bool deterministic = false;  ///< the same bits at every run: on CUDA a library's first algorithm
                               ///< in place of the fastest, and no sums without a fixed order
  bool tfloat32 = false;  ///< of the operands of float32 products and convolutions the tensor cores
                          ///< may keep 10 bits of the mantissa (NVIDIA's TF32)
  bool float8 = false;    ///< layers that have such products (Linear::float8) ask for them
};

/// What an op needs beside its tensors: the stream, memory for temporaries, the device library's
/// handles and its cache of prepared primitives. An op looks at the device of its context: on
/// `meta` it checks shapes and counts, and nothing else.
class Context {
 public:
  /// `workspace`: temporaries of a single op, given back at its end. `library`: weights in the
  /// device library's own format, kept. `target`: on meta, the device whose memory needs are asked
  /// for (sizes of workspace and of prepared weights); else target_of(the stream's device).
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
  Arena& workspace() const { return workspace_; }
  Arena& library() const { return library_; }
  Counters& counters() { return counters_; }
  /// Those that the device library knows and finds. What a start before found is added before the
  /// first op.
  AlgorithmTable& algorithms() { return algorithms_; }

  void count(double flops, double bytes) {
    counters_.flops += flops;
    counters_.bytes += bytes;
    ++counters_.calls;
  }

  /// The device library's side (src/ops/cpu: oneDNN engine, stream, primitives by problem). Ops
  /// only.
  struct Backend;
  Backend& backend() { return *backend_; }

 private:
  Stream stream_;
  Arena& workspace_;
  Arena& library_;
  DeviceKind target_;
  ContextOptions options_;
  Counters counters_;
  AlgorithmTable algorithms_;
  std::unique_ptr<Backend> backend_;
};

/// Where a layer's weight is kept in the library's own format between two updates; owned by the
/// layer, filled by the op at the first use after the weight changed (its memory comes from
/// Context::library once).
struct PreparedWeight {
  /// One prepared form: its bytes, the weight's version it was made from (0: never) and the
  /// library's number of the format.
  struct Copy {
    Tensor bytes;
    std::uint64_t version = 0;
    std::uint32_t format = 0;
  };
  Copy forward, backward;  ///< of the forward and of the backward-data primitive
};

/// A weight as an op sees it: its values in compute precision and plain order, a number that
/// changes with every update (from 1 on), and the place of its prepared form.
struct Weight {
  Tensor value;
  std::uint64_t version = 1;
  PreparedWeight* prepared = nullptr;
};

/// Whether a gradient is written (=) or added (+=): a step's first micro-batch writes, later ones
/// add.
enum class Write : bool { assign, add };

}  // namespace trireme::ops
