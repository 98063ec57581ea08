// SPDX-License-Identifier: Apache-2.0
//
// The ops that `trireme bench` measures, each as a function that allocates its tensors and returns
// the call, and the measurement itself.
//
// time_op(): plan the memory on meta, allocate it, set up several sets of tensors, call them in
// turns, take the lower quartile of the rounds.
#include "op_cases.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "trireme/base/clock.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/attention.hpp"
#include "trireme/ops/convolution.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/element_type.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/ops/normalization.hpp"
#include "trireme/ops/pooling.hpp"
#include "trireme/ops/rotary.hpp"
#include "trireme/ops/row_norm.hpp"
#include "trireme/ops/softmax_loss.hpp"
#include "trireme/ops/update/update.hpp"
#include "trireme/optim/rule.hpp"

namespace trireme::app {
namespace {

using Work = OpCase::Work;

// More than the last cache of most CPUs. Sets of tensors beyond it are not in the cache.
constexpr std::int64_t pool_bytes = std::int64_t{96} << 20;
constexpr std::int64_t max_sets = 16;
// A meta arena does not count the alignment of several sets.
constexpr std::int64_t spare_bytes = std::int64_t{4} << 20;

/// An op on `count` matrices [rows, columns] of one type.
template <std::size_t count, class Run>
OpCase on_matrices(const char* name, DType type, std::int64_t rows, std::int64_t columns, Run run) {
  return {name, [=](OpMemory& f) -> Work {
            std::array<Tensor, count> t;
            for (Tensor& tensor : t) tensor = f.ones(type, {rows, columns});
            return [&f, t, run] { run(f.context, t); };
          }};
}

void add_activations(std::vector<OpCase>& cases, DType type, std::int64_t rows,
                     std::int64_t width) {
  const auto add = [&]<std::size_t count>(std::integral_constant<std::size_t, count>,
                                          const char* name, auto run) {
    cases.push_back(on_matrices<count>(name, type, rows, width, run));
  };
  constexpr std::integral_constant<std::size_t, 2> two;
  constexpr std::integral_constant<std::size_t, 3> three;
  add(two, "add", [](auto& c, auto& t) { ops::add(c, t[0], t[1]); });
  add(two, "copy", [](auto& c, auto& t) { ops::copy(c, t[0], t[1]); });
  add(two, "relu_forward", [](auto& c, auto& t) { relu_forward(c, t[0], t[1]); });
  add(three, "relu_backward", [](auto& c, auto& t) { relu_backward(c, t[0], t[1], t[2]); });
  add(two, "gelu_forward", [](auto& c, auto& t) { gelu_forward(c, t[0], t[1]); });
  add(three, "gelu_backward", [](auto& c, auto& t) { gelu_backward(c, t[0], t[1], t[2]); });
  add(three, "dropout_add", [](auto& c, auto& t) { dropout_add(c, {}, t[0], {}, t[1], t[2]); });
  for (const bool forward : {true, false})
    cases.push_back({forward ? "swiglu_forward" : "swiglu_backward", [=](OpMemory& f) -> Work {
                       const Tensor x = f.ones(type, {rows, 2 * width}),
                                    y = f.ones(type, {rows, width}),
                                    dx = f.ones(type, {forward ? 1 : rows, 2 * width});
                       return [&f, forward, x, y, dx] {
                         forward ? swiglu_forward(f.context, x, y)
                                 : swiglu_backward(f.context, x, y, dx);
                       };
                     }});
  constexpr std::int64_t head_width = 64;
  const ops::Rotary rotation{.rows = rows,
                             .columns = width,
                             .heads = width / head_width,
                             .head_width = head_width,
                             .context = std::gcd(rows, std::int64_t{256}),
                             .dtype = type};
  if (width % head_width == 0)
    cases.push_back(on_matrices<1>("rotary", type, rows, width, [rotation](auto& c, auto& t) {
      rotary(c, rotation, t[0], false);
    }));
  cases.push_back({"column_sums", [=](OpMemory& f) -> Work {
                     const Tensor dy = f.ones(type, {rows, width}),
                                  sums = f.ones(DType::float32, {width});
                     return
                         [&f, dy, sums] { column_sums(f.context, dy, sums, ops::Write::assign); };
                   }});
}

void add_row_norms(std::vector<OpCase>& cases, DType type, std::int64_t rows, std::int64_t width) {
  const ops::RowNorm op{rows, width, false, type};
  for (const bool forward : {true, false})
    cases.push_back({forward ? "row_norm_forward" : "row_norm_backward", [=](OpMemory& f) -> Work {
                       std::array<Tensor, 4> t;
                       for (Tensor& tensor : t) tensor = f.ones(type, {rows, width});
                       std::array<Tensor, 6> p;
                       for (std::size_t i = 0; i < p.size(); ++i)
                         p[i] = f.ones(DType::float32, {i < 4 ? width : rows});
                       return [&f, op, forward, t, p] {
                         if (forward)
                           row_norm_forward(f.context, op, t[0], p[0], p[1], t[1], p[4], p[5]);
                         else
                           row_norm_backward(f.context, op, t[0], t[1], p[0], p[4], p[5], t[2],
                                             t[3], p[2], p[3], ops::Write::assign);
                       };
                     }});
}

void add_batch_norms(std::vector<OpCase>& cases, DType type, std::int64_t rows,
                     std::int64_t channels) {
  const ops::BatchNorm op{rows, channels, true, false, type};
  enum class Step : std::uint8_t { statistics, apply, backward };
  for (const Step part : {Step::statistics, Step::apply, Step::backward})
    cases.push_back(
        {part == Step::statistics ? "batch_norm_statistics"
         : part == Step::apply    ? "batch_norm_apply"
                                  : "batch_norm_backward",
         [=](OpMemory& f) -> Work {
           std::array<Tensor, 4> t;
           for (Tensor& tensor : t) tensor = f.ones(type, {rows, channels});
           std::array<Tensor, 9> p;
           for (Tensor& tensor : p) tensor = f.ones(DType::float32, {channels});
           const std::int64_t elements = batch_norm_mask_elements(f.context, op);
           const Tensor mask = elements > 0 ? f.make(DType::uint8, {elements}) : Tensor{};
           return [&f, op, part, t, p, mask] {
             const ops::BatchStatistics statistics{p[2], p[3], p[4]};
             if (part == Step::statistics)
               batch_norm_statistics(f.context, op, t[0], statistics);
             else if (part == Step::apply)
               batch_norm_apply(f.context, op, t[0], p[0], p[1], {}, t[1], statistics, mask);
             else
               batch_norm_backward(f.context, op, t[0], t[1], t[2], p[0], p[1], statistics, t[3],
                                   {}, p[5], p[6], {p[7], p[8]}, mask, ops::Write::assign);
           };
         }});
}

void add_losses(std::vector<OpCase>& cases, DType type, std::int64_t rows, std::int64_t classes) {
  for (const bool gradient : {false, true})
    cases.push_back(
        {gradient ? "softmax_gradient" : "softmax_statistics", [=](OpMemory& f) -> Work {
           const Tensor logits = f.ones(DType::float32, {rows, classes}),
                        dlogits = f.ones(type, {gradient ? rows : 1, classes}),
                        statistics = f.ones(DType::float32, {rows, 4}),
                        labels = f.numbers(rows, classes), ranks = f.make(DType::int32, {rows});
           return [&f, gradient, classes, logits, dlogits, statistics, labels, ranks] {
             if (gradient)
               softmax_gradient(f.context, {.total_classes = classes, .gradient_scale = 1}, logits,
                                labels, statistics, dlogits, ranks);
             else
               softmax_statistics(f.context, logits, labels, 0, statistics);
           };
         }});
}

void add_embeddings(std::vector<OpCase>& cases, DType type, std::int64_t rows, std::int64_t width) {
  const std::int64_t vocabulary = std::clamp<std::int64_t>(rows, 64, 8192);
  cases.push_back(
      {"embedding_forward", [=](OpMemory& f) -> Work {
         const Tensor table = f.ones(type, {vocabulary, width}), y = f.ones(type, {rows, width}),
                      tokens = f.numbers(rows, vocabulary);
         return [&f, table, y, tokens] { embedding_forward(f.context, tokens, table, 0, y); };
       }});
  cases.push_back({"embedding_backward", [=](OpMemory& f) -> Work {
                     const Tensor dtable = f.ones(DType::float32, {vocabulary, width}),
                                  dy = f.ones(type, {rows, width}),
                                  tokens = f.numbers(rows, vocabulary);
                     return [&f, dtable, dy, tokens] {
                       embedding_backward(f.context, tokens, dy, 0, dtable, ops::Write::assign);
                     };
                   }});
}

/// Images of `side` x `side` pixels.
constexpr std::int64_t side = 32, pixels = side * side;

void add_pools(std::vector<OpCase>& cases, DType type, std::int64_t images, std::int64_t channels) {
  const ops::Pooling pool{
      .batch = images, .height = side, .width = side, .channels = channels, .dtype = type};
  const Shape shape{images, side, side, channels};
  for (const bool forward : {true, false}) {
    cases.push_back({forward ? "max_pool_forward" : "max_pool_backward", [=](OpMemory& f) -> Work {
                       const Tensor x = f.ones(type, shape), y = f.ones(type, pool.output_shape()),
                                    winners = f.make(DType::uint8, pool.output_shape());
                       return [&f, pool, forward, x, y, winners] {
                         forward ? max_pool_forward(f.context, pool, x, y, winners)
                                 : max_pool_backward(f.context, pool, y, winners, x);
                       };
                     }});
    cases.push_back(
        {forward ? "average_pool_forward" : "average_pool_backward", [=](OpMemory& f) -> Work {
           const Tensor x = f.ones(type, shape), y = f.ones(type, {images, channels});
           return [&f, images, channels, forward, x, y] {
             forward ? average_pool_forward(f.context, images, pixels, channels, x, y)
                     : average_pool_backward(f.context, images, pixels, channels, y, x);
           };
         }});
  }
}

void add_preparation(std::vector<OpCase>& cases, DType type, std::int64_t images) {
  cases.push_back(
      {"prepare_images", [=](OpMemory& f) -> Work {
         const Shape shape{images, side, side, 3};
         const Tensor x = f.make(DType::uint8, shape), y = f.make(type, shape);
         const auto* transforms =
             f.placed(std::vector<ops::ImageTransform>(static_cast<std::size_t>(images)));
         return [&f, x, y, transforms] { prepare_images(f.context, {}, x, transforms, y); };
       }});
}

/// Flat buffers, updated in chunks of the size that runs use.
void add_updates(std::vector<OpCase>& cases, DType type, std::int64_t elements) {
  constexpr std::int64_t chunk_elements = 16384;
  const auto add = [&](const ops::UpdatePass& pass) {
    cases.push_back({std::string(pass.op.name), [=](OpMemory& f) -> Work {
                       ops::WindowState s;
                       s.weight = f.ones(DType::float32, {elements});
                       s.gradient = f.ones(DType::float32, {elements});
                       for (int slot = 0; slot < pass.slots; ++slot)
                         s.slots[slot] = f.ones(DType::float32, {elements});
                       const std::int64_t bytes = size_of(type);
                       s.working = f.make(DType::uint8, {bytes * elements});
                       s.elements = elements;
                       s.working_bytes = bytes * elements;
                       std::vector<ops::FlatChunk> chunks;
                       for (std::int64_t begin = 0; begin < elements; begin += chunk_elements)
                         chunks.push_back(
                             {begin,
                              static_cast<std::int32_t>(std::min(chunk_elements, elements - begin)),
                              0, ops::element_type(type), bytes * begin});
                       s.chunk_count = static_cast<std::int64_t>(chunks.size());
                       s.chunks = f.placed(chunks);
                       s.rates = f.placed(std::vector<ops::TensorRates>{{1e-3f, 0.1f, 1, 0, 0.9f}});
                       s.decision = f.placed(std::vector<ops::StepDecision>{{1, 1, 0.1f, 0.1f}});
                       return [&f, s, pass] { update(f.context, pass, {}, s); };
                     }});
  };
  // A step along a direction moves its data as a copy does, so the pass before it is measured.
  for (const optim::UpdateRule* rule : optim::rules())
    add(rule->direction.kernel != nullptr ? rule->direction : rule->step);
  constexpr std::int64_t row = 256;
  cases.push_back({"row_square_sums", [=](OpMemory& f) -> Work {
                     const Tensor flat = f.ones(DType::float32, {elements}),
                                  sums = f.make(DType::float64, {elements / row});
                     std::vector<ops::FlatRow> rows;
                     for (std::int64_t r = 0; r < elements / row; ++r)
                       rows.push_back({r * row, row, 0});
                     const ops::FlatRow* const placed = f.placed(rows);
                     return [&f, flat, placed, sums, count = elements / row] {
                       row_square_sums(f.context, flat, placed, count, sums.as<double>());
                     };
                   }});
}

/// Tensors and calls of a sequence in memory of its own, with `sets` sets of tensors.
class PreparedOps {
 public:
  PreparedOps(const std::vector<OpCase>& sequence, Device device) {
    // 1. The memory of one set.
    OpMemory meta({DeviceKind::meta, 0}, ops::target_of(device.kind));
    for (const OpCase& one : sequence) one.setup(meta)();
    const std::int64_t bytes = std::max<std::int64_t>(1, meta.tensors.peak_bytes());
    sets_ = std::clamp<std::int64_t>(pool_bytes / bytes, 1, max_sets);
    // 2. All sets.
    memory_ = std::make_unique<OpMemory>(device, ops::target_of(device.kind),
                                         sets_ * (bytes + 4096) + spare_bytes,
                                         meta.workspace.peak_bytes() + spare_bytes,
                                         sets_ * (meta.library.peak_bytes() + 4096) + spare_bytes);
    for (std::int64_t set = 0; set < sets_; ++set)
      for (const OpCase& one : sequence) works_.push_back(one.setup(*memory_));
    // 3. The calls of the first set; the library prepares its products.
    memory_->context.set_op_observer([this](const ops::OpCall& call) { calls_.push_back(call); });
    length_ = sequence.size();
    run();
    memory_->context.set_op_observer({});
    for (std::int64_t set = 1; set < sets_; ++set) run();
  }
  /// Runs the sequence once, on the next set.
  void run() {
    for (std::size_t i = 0; i < length_; ++i) works_[current_set_ * length_ + i]();
    current_set_ = (current_set_ + 1) % static_cast<std::size_t>(sets_);
  }
  void wait() const { synchronize(memory_->stream.get()); }
  const std::vector<ops::OpCall>& calls() const { return calls_; }

 private:
  std::unique_ptr<OpMemory> memory_;
  std::vector<Work> works_;
  std::vector<ops::OpCall> calls_;
  std::int64_t sets_ = 1;
  std::size_t length_ = 0, current_set_ = 0;
};

/// Returns the lower quartile of the rounds: other work on the machine only adds time.
double quartile_seconds(PreparedOps& prepared, int rounds, double min_seconds) {
  prepared.wait();
  const auto measure = [&](int times) {
    const double start = monotonic_seconds();
    for (int i = 0; i < times; ++i) prepared.run();
    prepared.wait();
    return (monotonic_seconds() - start) / times;
  };
  const double once = std::max(measure(1), 1e-9);
  const int times = std::clamp(static_cast<int>(min_seconds / once), 1, 100000);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(measure(times));
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 4];
}

}  // namespace

OpMemory::OpMemory(Device device, DeviceKind target, std::int64_t tensor_bytes,
                   std::int64_t workspace_bytes, std::int64_t library_bytes)
    : stream(device),
      tensors(device, "tensors", tensor_bytes),
      workspace(device, "workspace", workspace_bytes),
      library(device, "library", library_bytes),
      context(stream.get(), workspace, library, target) {}

Tensor OpMemory::ones(DType type, const Shape& shape) {
  const Tensor t = make(type, shape);
  if (!context.meta()) ops::fill(context, t, 1);
  return t;
}

Tensor OpMemory::numbers(std::int64_t count, std::int64_t below) {
  const Tensor t = make(DType::int32, {count});
  if (context.meta()) return t;
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7919 % below);
  copy_bytes(context.stream(), t.data, values.data(), static_cast<std::size_t>(t.bytes()));
  return t;
}

const void* OpMemory::placed_bytes(const void* from, std::int64_t bytes) {
  const Tensor t = make(DType::uint8, {bytes});
  if (context.meta()) {  // ops may count what a table holds
    const auto* const begin = static_cast<const std::byte*>(from);
    return tables_.emplace_back(begin, begin + bytes).data();
  }
  copy_bytes(context.stream(), t.data, from, static_cast<std::size_t>(bytes));
  return t.data;
}

OpCase linear_case(DType type, LayerPass pass, std::int64_t rows, std::int64_t in,
                   std::int64_t out) {
  const ops::Linear l{.rows = rows, .in = in, .out = out, .dtype = type};
  return {fmt::format("linear {} x {} x {}", rows, in, out), [=](OpMemory& f) -> Work {
            const Tensor x = f.ones(type, {rows, in}), y = f.ones(type, {rows, out}),
                         w = f.ones(pass == LayerPass::backward_weight ? DType::float32 : type,
                                    {out, in});
            // Shared by the copies of the call.
            const auto prepared = std::make_shared<ops::PreparedWeight>();
            const auto version = std::make_shared<std::uint64_t>(0);
            return [=, &f] {
              const ops::Weight weight{w, ++*version, prepared.get()};
              switch (pass) {
                case LayerPass::forward: return linear_forward(f.context, l, x, weight, {}, y);
                case LayerPass::backward_data:
                  return linear_backward_data(f.context, l, y, weight, x);
                case LayerPass::backward_weight:
                  return linear_backward_weight(f.context, l, x, y, w, {}, ops::Write::assign);
              }
            };
          }};
}

OpCase convolution_case(DType type, LayerPass pass, std::int64_t batch, std::int64_t side,
                        std::int64_t in, std::int64_t out, std::int64_t kernel,
                        std::int64_t stride) {
  const ops::Convolution c{.batch = batch,
                           .height = side,
                           .width = side,
                           .in_channels = in,
                           .out_channels = out,
                           .kernel = kernel,
                           .stride = stride,
                           .padding = kernel / 2,
                           .dtype = type};
  return {fmt::format("convolution {} to {}, {}x{}, stride {}, {} images of {}x{}", in, out, kernel,
                      kernel, stride, batch, side, side),
          [=](OpMemory& f) -> Work {
            const Tensor x = f.ones(type, c.input_shape()), y = f.ones(type, c.output_shape()),
                         w = f.ones(pass == LayerPass::backward_weight ? DType::float32 : type,
                                    c.weight_shape());
            const auto prepared = std::make_shared<ops::PreparedWeight>();
            const auto version = std::make_shared<std::uint64_t>(0);
            return [=, &f] {
              const ops::Weight weight{w, ++*version, prepared.get()};
              switch (pass) {
                case LayerPass::forward: return convolution_forward(f.context, c, x, weight, y);
                case LayerPass::backward_data:
                  return convolution_backward_data(f.context, c, y, weight, {}, x);
                case LayerPass::backward_weight:
                  return convolution_backward_weight(f.context, c, x, y, w, ops::Write::assign);
              }
            };
          }};
}

OpCase attention_case(DType type, bool forward, std::int64_t batch, std::int64_t heads,
                      std::int64_t context, std::int64_t head_width) {
  const ops::Attention a{.batch = batch,
                         .context = context,
                         .heads = heads,
                         .kv_heads = heads,
                         .head_width = head_width,
                         .dtype = type};
  return {fmt::format("attention of {} tokens, heads of {}", context, head_width),
          [=](OpMemory& f) -> Work {
            const std::int64_t rows = batch * context;
            const Tensor qkv = f.ones(type, {rows, a.qkv_width()}),
                         out = f.ones(type, {rows, a.out_width()}),
                         log_sum = f.ones(DType::float32, {batch, heads, context}),
                         dout = f.ones(type, {rows, a.out_width()}),
                         dqkv = f.ones(type, {rows, a.qkv_width()});
            return [=, &f] {
              forward ? attention_forward(f.context, a, qkv, out, log_sum)
                      : attention_backward(f.context, a, qkv, out, log_sum, dout, dqkv);
            };
          }};
}

OpCase copy_case(std::int64_t elements) {
  return on_matrices<2>("copy", DType::float32, 1, elements,
                        [](auto& c, auto& t) { ops::copy(c, t[0], t[1]); });
}

std::vector<OpCase> memory_bound_cases(DType type, std::int64_t elements) {
  constexpr std::int64_t width = 256, channels = 64, classes = 4096;
  std::vector<OpCase> cases;
  const auto parts = [&](std::int64_t part) { return std::max<std::int64_t>(1, elements / part); };
  add_activations(cases, type, parts(width), width);
  add_row_norms(cases, type, parts(width), width);
  add_batch_norms(cases, type, parts(channels), channels);
  add_losses(cases, type, parts(classes), classes);
  add_embeddings(cases, type, parts(width), width);
  add_pools(cases, type, parts(pixels * channels), channels);
  add_preparation(cases, type, parts(pixels * 3));
  add_updates(cases, type, std::max<std::int64_t>(width, elements));
  return cases;
}

std::vector<OpCase> memory_bound_cases(DType type, const OpSize& size) {
  const auto [rows, columns] = size;
  const std::int64_t images = std::max<std::int64_t>(1, rows / pixels);
  std::vector<OpCase> cases;
  add_activations(cases, type, rows, columns);
  add_row_norms(cases, type, rows, columns);
  add_batch_norms(cases, type, rows, columns);
  add_losses(cases, type, rows, columns);
  add_embeddings(cases, type, rows, columns);
  add_pools(cases, type, images, columns);
  add_preparation(cases, type, images);
  add_updates(cases, type, rows * columns);
  return cases;
}

OpTiming time_op(const OpCase& one, int rounds, double min_seconds, Device device) {
  PreparedOps prepared({one}, device);
  // A fused op counts twice; its product is the larger part.
  const auto larger = [](const ops::OpCall& a, const ops::OpCall& b) {
    return a.flops < b.flops || (a.flops == b.flops && a.bytes < b.bytes);
  };
  const auto& calls = prepared.calls();
  return {*std::max_element(calls.begin(), calls.end(), larger),
          quartile_seconds(prepared, rounds, min_seconds)};
}

SequenceTiming time_sequence(const std::vector<OpCase>& sequence, int rounds, double min_seconds) {
  PreparedOps prepared(sequence, {});
  return {prepared.calls(), quartile_seconds(prepared, rounds, min_seconds)};
}

}  // namespace trireme::app
