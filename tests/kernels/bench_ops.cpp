// SPDX-License-Identifier: Apache-2.0
//
// Measures the ops that are limited by memory bandwidth: bytes that each op must move at least (its
// counters) divided by its time, next to the rate of a copy. No result fails. Prints one JSON
// object per line.
//
//   bench_ops [cpu|cuda [DIVISOR [NAME]]]
//
// DIVISOR: use this many times fewer rows than a GPU's batch. NAME: only the op that is printed
// with this name. Exits with 77 if there is no device.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "reference.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/device.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/normalization.hpp"
#include "trireme/ops/pooling.hpp"
#include "trireme/ops/rotary.hpp"
#include "trireme/ops/row_norm.hpp"
#include "trireme/ops/softmax_loss.hpp"
#include "trireme/ops/update.hpp"

namespace trireme::test {
namespace {

using Work = std::function<void()>;
/// Allocates its tensors in the fixture and returns the function to be timed.
using Setup = std::function<Work(OpsFixture&)>;

struct Case {
  std::string name;
  Setup setup;
};

// Minimum length of a round: far above the resolution of any clock, and long enough to queue many
// launches on a device.
constexpr double min_seconds = 0.05;
constexpr int rounds = 5;

double seconds_of(const Work& work, const Stream& stream, int times) {
  const double start = monotonic_seconds();
  for (int i = 0; i < times; ++i) work();
  synchronize(stream);
  return (monotonic_seconds() - start) / times;
}

void measure(const Case& one, DeviceKind kind) {
  OpsFixture meta(DeviceKind::meta);
  one.setup(meta)();
  // A meta arena counts another device's library workspace as this one's.
  constexpr std::int64_t spare = 4 * OpsFixture::mebibyte;
  OpsFixture fixture(kind,
                     std::max(meta.tensors.peak_bytes(), meta.workspace.peak_bytes()) + spare);
  fixture.workspace.set_allocation_hook({});
  const Work work = one.setup(fixture);
  const Stream& stream = fixture.context.stream();
  seconds_of(work, stream, 1);
  fixture.context.counters() = {};
  const double once = seconds_of(work, stream, 1), bytes = fixture.context.counters().bytes;
  const int times = std::clamp(static_cast<int>(min_seconds / once), 1, 10000);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(seconds_of(work, stream, times));
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[rounds / 2];
  std::puts(fmt::format(R"({{"op": "{}", "bytes": {:.0f}, "seconds": {:.4g}, )"
                        R"("least": {:.4g}, "most": {:.4g}, "gb_per_s": {:.1f}}})",
                        one.name, bytes, median, seconds.front(), seconds.back(),
                        bytes / median * 1e-9)
                .c_str());
  std::fflush(stdout);
}

Tensor ones(OpsFixture& f, DType type, const Shape& shape) {
  const Tensor t = f.make(type, shape);
  if (!f.context.meta()) ops::fill(f.context, t, 1);
  return t;
}

/// Returns the numbers 0, 7919, 2 * 7919, ... modulo `below`.
Tensor numbers(OpsFixture& f, std::int64_t count, std::int64_t below) {
  const Tensor t = f.make(DType::int32, {count});
  if (f.context.meta()) return t;
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % below);
  copy_bytes(f.context.stream(), t.data, values.data(), values.size() * sizeof values[0]);
  return t;
}

/// Matrices [rows, columns] of one type, allocated before the op runs.
template <std::size_t count, class Run>
Setup on_matrices(DType type, std::int64_t rows, std::int64_t columns, const Run& run) {
  return [=](OpsFixture& f) -> Work {
    std::array<Tensor, count> tensors;
    for (Tensor& tensor : tensors) tensor = ones(f, type, {rows, columns});
    return [&f, tensors, run] { run(f.context, tensors); };
  };
}

void add_norms(std::vector<Case>& cases, std::int64_t images) {
  struct Place {
    std::int64_t pixels, channels;
    bool add;
  };
  for (const Place& place : {Place{112 * 112, 64, false},
                             {56 * 56, 64, false},
                             {56 * 56, 256, true},
                             {28 * 28, 512, true},
                             {7 * 7, 2048, true}}) {
    const ops::BatchNorm op{images * place.pixels, place.channels, true, place.add,
                            DType::bfloat16};
    const std::string name =
        fmt::format("rows {} channels {}{}", op.rows, op.channels, op.add ? " add" : "");
    const auto tensors = [op](OpsFixture& f) {
      std::array<Tensor, 6> t;
      for (Tensor& tensor : t) tensor = ones(f, op.dtype, {op.rows, op.channels});
      return t;
    };
    const auto parameters = [op](OpsFixture& f) {
      std::array<Tensor, 9> t;
      for (Tensor& tensor : t) tensor = ones(f, DType::float32, {op.channels});
      return t;
    };
    const auto mask_of = [op](OpsFixture& f) {
      const std::int64_t elements = batch_norm_mask_elements(f.context, op);
      return elements > 0 ? f.make(DType::uint8, {elements}) : Tensor{};
    };
    cases.push_back({"batch_norm_forward " + name, [=](OpsFixture& f) -> Work {
                       const auto t = tensors(f);
                       const auto p = parameters(f);
                       const Tensor mask = mask_of(f);
                       return [&f, op, t, p, mask] {
                         const ops::BatchStatistics statistics{p[2], p[3], p[4]};
                         batch_norm_statistics(f.context, op, t[0], statistics);
                         batch_norm_apply(f.context, op, t[0], p[0], p[1], t[1], t[2], statistics,
                                          mask);
                       };
                     }});
    cases.push_back({"batch_norm_backward " + name, [=](OpsFixture& f) -> Work {
                       const auto t = tensors(f);
                       const auto p = parameters(f);
                       const Tensor mask = mask_of(f);
                       return [&f, op, t, p, mask] {
                         batch_norm_backward(f.context, op, t[0], t[2], t[3], p[0], p[1],
                                             {p[2], p[3], p[4]}, t[4], t[5], p[5], p[6],
                                             {p[7], p[8]}, mask, ops::Write::assign);
                       };
                     }});
  }
}

void add_rows(std::vector<Case>& cases, std::int64_t rows) {
  for (const std::int64_t width : {768, 1600}) {
    const ops::RowNorm op{rows, width, false, DType::bfloat16};
    const auto parameters = [op](OpsFixture& f) {
      std::array<Tensor, 6> t;
      for (std::size_t i = 0; i < t.size(); ++i)
        t[i] = ones(f, DType::float32, {i < 4 ? op.width : op.rows});
      return t;
    };
    const std::string name = fmt::format("rows {} width {}", rows, width);
    cases.push_back({"layer_norm_forward " + name, [=](OpsFixture& f) -> Work {
                       const Tensor x = ones(f, op.dtype, {rows, width}),
                                    y = ones(f, op.dtype, {rows, width});
                       const auto p = parameters(f);
                       return [&f, op, x, y, p] {
                         row_norm_forward(f.context, op, x, p[0], p[1], y, p[4], p[5]);
                       };
                     }});
    cases.push_back({"layer_norm_backward " + name, [=](OpsFixture& f) -> Work {
                       std::array<Tensor, 4> t;
                       for (Tensor& tensor : t) tensor = ones(f, op.dtype, {rows, width});
                       const auto p = parameters(f);
                       return [&f, op, t, p] {
                         row_norm_backward(f.context, op, t[0], t[1], p[0], p[4], p[5], t[2], t[3],
                                           p[2], p[3], ops::Write::assign);
                       };
                     }});
  }
  constexpr DType half = DType::bfloat16;
  cases.push_back(
      {fmt::format("gelu_forward {} x 3072", rows),
       on_matrices<2>(half, rows, 3072, [](auto& c, auto& t) { gelu_forward(c, t[0], t[1]); })});
  cases.push_back({fmt::format("gelu_backward {} x 3072", rows),
                   on_matrices<3>(half, rows, 3072,
                                  [](auto& c, auto& t) { gelu_backward(c, t[0], t[1], t[2]); })});
  cases.push_back(
      {fmt::format("add {} x 768", rows),
       on_matrices<2>(half, rows, 768, [](auto& c, auto& t) { ops::add(c, t[0], t[1]); })});
  cases.push_back({fmt::format("dropout_add {} x 768", rows),
                   on_matrices<3>(half, rows, 768, [](auto& c, auto& t) {
                     dropout_add(c, {}, t[0], {}, t[1], t[2]);
                   })});
  for (const std::int64_t tile : {std::int64_t{256}, std::max<std::int64_t>(256, rows / 8)}) {
    static constexpr std::int64_t classes = 50304;
    const auto setup = [=](bool gradient) {
      return [=](OpsFixture& f) -> Work {
        const Tensor logits = ones(f, DType::float32, {tile, classes}),
                     dlogits = ones(f, half, {gradient ? tile : 1, classes}),
                     statistics = ones(f, DType::float32, {tile, 4}),
                     labels = numbers(f, tile, classes), ranks = f.make(DType::int32, {tile});
        return [&f, gradient, logits, dlogits, statistics, labels, ranks] {
          if (gradient)
            softmax_gradient(f.context, {.total_classes = classes, .gradient_scale = 1}, logits,
                             labels, statistics, dlogits, ranks);
          else
            softmax_statistics(f.context, logits, labels, 0, statistics);
        };
      };
    };
    cases.push_back({fmt::format("softmax_statistics {} x {}", tile, classes), setup(false)});
    cases.push_back({fmt::format("softmax_gradient {} x {}", tile, classes), setup(true)});
  }
  cases.push_back({fmt::format("column_sums {} x 3072", rows), [=](OpsFixture& f) -> Work {
                     const Tensor dy = ones(f, half, {rows, 3072}),
                                  sums = ones(f, DType::float32, {3072});
                     return
                         [&f, dy, sums] { column_sums(f.context, dy, sums, ops::Write::assign); };
                   }});
  cases.push_back(
      {fmt::format("embedding_backward {} of 50304 x 768", rows), [=](OpsFixture& f) -> Work {
         const Tensor dy = ones(f, half, {rows, 768}),
                      table = ones(f, DType::float32, {50304, 768}),
                      tokens = numbers(f, rows, 50304);
         return [&f, dy, table, tokens] {
           embedding_backward(f.context, tokens, dy, 0, table, ops::Write::assign);
         };
       }});
}

void add_images(std::vector<Case>& cases, std::int64_t images) {
  const ops::MaxPool pool{
      .batch = images, .height = 112, .width = 112, .channels = 64, .dtype = DType::bfloat16};
  const auto setup = [=](bool forward) {
    return [=](OpsFixture& f) -> Work {
      const Tensor x = ones(f, pool.dtype, {images, pool.height, pool.width, pool.channels}),
                   y = ones(f, pool.dtype, pool.output_shape()),
                   winners = f.make(DType::uint8, pool.output_shape());
      return [&f, pool, forward, x, y, winners] {
        forward ? max_pool_forward(f.context, pool, x, y, winners)
                : max_pool_backward(f.context, pool, y, winners, x);
      };
    };
  };
  cases.push_back({fmt::format("max_pool_forward {} x 112 x 112 x 64", images), setup(true)});
  cases.push_back({fmt::format("max_pool_backward {} x 112 x 112 x 64", images), setup(false)});
  for (const auto& [name, mix] : {std::pair("", ops::Mix::none), {" mixup", ops::Mix::mixup}})
    cases.push_back({fmt::format("prepare_images {} x 224 x 224 x 3{}", images, name),
                     [=, mix = mix](OpsFixture& f) -> Work {
                       const Tensor x = f.make(DType::uint8, {images, 224, 224, 3}),
                                    y = f.make(DType::bfloat16, {images, 224, 224, 3});
                       std::vector<ops::ImageTransform> drawn(static_cast<std::size_t>(images));
                       for (ops::ImageTransform& transform : drawn) transform.mix = mix;
                       const auto* transforms = f.placed(drawn);
                       const ops::ImagePreparation preparation{.mixes = mix != ops::Mix::none};
                       return [&f, preparation, x, y, transforms] {
                         prepare_images(f.context, preparation, x, transforms, y);
                       };
                     }});
}

/// Flat buffers of a network of `elements` weights in rows of 768, updated in chunks of the size
/// that runs use.
void add_updates(std::vector<Case>& cases, std::int64_t elements) {
  constexpr std::int64_t chunk_elements = 16384, row = 768;
  struct State {
    ops::FlatState flat;
    const ops::FlatChunk* chunks;
    std::int64_t count;
    const ops::TensorRates* rates;
    const ops::StepDecision* judgement;
  };
  const auto state = [=](OpsFixture& f) {
    State s;
    for (Tensor* t : {&s.flat.weight, &s.flat.gradient, &s.flat.slot1, &s.flat.slot2})
      *t = ones(f, DType::float32, {elements});
    s.flat.working = f.make(DType::uint8, {2 * elements});
    s.flat.working_bytes = 2 * elements;
    std::vector<ops::FlatChunk> chunks;
    for (std::int64_t begin = 0; begin < elements; begin += chunk_elements) {
      chunks.push_back({begin,
                        static_cast<std::int32_t>(std::min(chunk_elements, elements - begin)), 0,
                        ElementType::bfloat16, 2 * begin});
    }
    s.count = static_cast<std::int64_t>(chunks.size());
    s.chunks = f.placed(chunks);
    s.rates = f.placed(std::vector<ops::TensorRates>{{1e-3f, 0.1f, 1, 0, 0.9f}});
    s.judgement = f.placed(std::vector<ops::StepDecision>{{1, 1, 0.1f, 0.1f}});
    return s;
  };
  const auto with = [&](const char* name, const auto& run) {
    cases.push_back({fmt::format("{} {}", name, elements), [=](OpsFixture& f) -> Work {
                       const State s = state(f);
                       return [&f, s, run] { run(f.context, s); };
                     }});
  };
  with("update_sgd", [](ops::Context& c, const State& s) {
    update_sgd(c, ops::SgdRule{false}, s.flat, s.chunks, s.count, s.rates, s.judgement);
  });
  with("update_lars", [](ops::Context& c, const State& s) {
    update_lars(c, s.flat, s.chunks, s.count, s.rates, s.judgement);
  });
  with("update_adamw", [](ops::Context& c, const State& s) {
    update_adamw(c, {}, s.flat, s.chunks, s.count, s.rates, s.judgement);
  });
  with("lamb_direction", [](ops::Context& c, const State& s) {
    lamb_direction(c, {}, s.flat, s.chunks, s.count, s.rates, s.judgement);
  });
  cases.push_back({fmt::format("row_square_sums {} rows of {}", elements / row, row),
                   [=](OpsFixture& f) -> Work {
                     const Tensor flat = ones(f, DType::float32, {elements}),
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

int run(int count, char** words) {
  const std::string device = count > 1 ? words[1] : "cpu";
  const std::int64_t divisor = count > 2 ? std::atoll(words[2]) : 1;
  const std::string only = count > 3 ? words[3] : "";
  if ((device != "cpu" && device != "cuda") || divisor < 1 || divisor > 128) {
    std::fprintf(stderr, "bench_ops [cpu|cuda [DIVISOR [NAME]]], DIVISOR from 1 to 128\n");
    return 2;
  }
  setenv("TRIREME_TEST_DEVICE", device.c_str(), 1);
  std::string why;
  if (device == "cuda" && cuda_device_count(&why) == 0) {
    std::printf("skipped: no CUDA device: %s\n", why.c_str());
    return 77;
  }
  const KokkosScope kokkos;
  std::vector<Case> cases;
  const std::int64_t copied = (std::int64_t{1} << 29) / divisor;
  cases.push_back({fmt::format("copy {}", copied),
                   on_matrices<2>(DType::float32, 1, copied,
                                  [](auto& c, auto& t) { ops::copy(c, t[0], t[1]); })});
  add_norms(cases, 256 / divisor);
  add_rows(cases, 32768 / divisor);
  add_images(cases, 256 / divisor);
  add_updates(cases, 124'000'000 / divisor / 768 * 768);
  if (!only.empty()) {
    std::erase_if(cases, [&](const Case& one) { return one.name != only; });
    if (cases.empty()) std::fprintf(stderr, "bench_ops: no op \"%s\"\n", only.c_str());
  }
  for (const Case& one : cases) measure(one, tested_device());
  return cases.empty() ? 2 : 0;
}

}  // namespace
}  // namespace trireme::test

int main(int count, char** words) { return trireme::test::run(count, words); }
