// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates (SGD, LARS, AdamW, LAMB, weight average) and square sums of rows on the flat
// buffers. Called by src/ops/update.cpp in each step, after decide_step().
// Plan: one work item per chunk. A chunk belongs to one tensor, so its rates are constants of the
// inner loop. An element's result does not depend on the partition into chunks.
// A functor on (chunk, begin, end) is the host form, one on (chunk, group) the device form
// (update_device.hpp).
// Memory traffic: weight, gradient and slots are read once; weight, slots and the working copy are
// written once. LAMB takes two passes and writes the direction of the step between them.

#include "trireme/kernels/update.hpp"

#include "row_group.hpp"
#include "update_device.hpp"

namespace trireme::kernels {
namespace {

const std::string square_label = "trireme/kernels/row_square_sums";
const std::string sgd_label = "trireme/kernels/update_sgd";
const std::string lars_label = "trireme/kernels/update_lars";
const std::string adamw_label = "trireme/kernels/update_adamw";
const std::string lamb_direction_label = "trireme/kernels/lamb_direction";
const std::string lamb_label = "trireme/kernels/update_lamb";
const std::string ema_label = "trireme/kernels/update_ema";

/// Square sum of one row in 32 double-precision lanes: element i is added to lane i % 32; the lanes
/// are added pairwise. `clip`: NoClip or Clip.
template <class Clipping>
struct RowSquareSum {
  static constexpr int lanes = 32;
  const float* flat;
  const FlatRow* rows;
  double* sums;
  Clipping clip;

  KOKKOS_FUNCTION void operator()(std::int64_t index, const HostGroup&) const {
    const Clipping clipped = clip;
    const float* x = flat + rows[index].offset;
    const std::int64_t count = rows[index].elements;
    double sum[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        const auto value = static_cast<double>(clipped(x[i + lane]));
        sum[lane] += value * value;
      }
    }
    for (int lane = 0; i < count; ++i, ++lane) {
      const auto value = static_cast<double>(clipped(x[i]));
      sum[lane] += value * value;
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
    }
    sums[index] = sum[0];
  }
};

/// The rules: each returns the new weight of one element and updates its slots by reference.
struct SgdElement {
  SgdRule rule;
  KOKKOS_FUNCTION float operator()(float w, float g, float& v, float&, const TensorRates& rates,
                                   const StepDecision&) const {
    const float decayed = g + rates.weight_decay * w;
    v = rates.momentum * v + decayed;
    return w - rates.rate * (rule.nesterov ? decayed + rates.momentum * v : v);
  }
};

struct LarsElement {
  KOKKOS_FUNCTION float operator()(float w, float g, float& v, float&, const TensorRates& rates,
                                   const StepDecision&) const {
    v = rates.momentum * v + rates.rate * rates.trust_ratio * (g + rates.weight_decay * w);
    return w - v;
  }
};

/// In PyTorch's order: weight decay first, then the step with both bias corrections.
struct AdamWElement {
  AdamWRule rule;
  KOKKOS_FUNCTION float operator()(float w, float g, float& m, float& v, const TensorRates& rates,
                                   const StepDecision&) const {
    m = rule.beta1 * m + (1 - rule.beta1) * g;
    v = rule.beta2 * v + (1 - rule.beta2) * (g * g);
    const float denominator = sqrtf(v / rates.bias_correction2) + rule.epsilon;
    return w * (1 - rates.rate * rates.weight_decay) -
           rates.rate / rates.bias_correction1 * (m / denominator);
  }
};

/// First pass of LAMB for one element: updates the moments and replaces the gradient by the
/// direction.
template <class Clipping>
struct DirectionStep {
  static constexpr unsigned reads = weights | gradients | first_slots | second_slots,
                            writes = gradients | first_slots | second_slots;
  LambRule rule;
  Clipping clip;
  TensorRates rates;
  StepDecision decision;
  KOKKOS_FUNCTION void operator()(float& w, float& g, float& m, float& v) const {
    const float scaled = decision.gradient_factor * clip(g);
    m = rule.beta1 * m + (1 - rule.beta1) * scaled;
    v = rule.beta2 * v + (1 - rule.beta2) * (scaled * scaled);
    g = m / rates.bias_correction1 / (sqrtf(v / rates.bias_correction2) + rule.epsilon) +
        rates.weight_decay * w;
  }
};

/// First pass of LAMB (You et al. 2020, algorithm 2) with bias correction. Weight decay is part of
/// the direction, so it is part of its norm.
template <class Clipping>
struct LambDirection {
  Update args;
  LambRule rule;
  Clipping clip;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t chunk) const {
    return args.chunks[chunk].elements;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    const StepDecision decision = *args.decision;
    const FlatChunk chunk = args.chunks[index];
    const TensorRates rates = args.rates[chunk.tensor];
    if (decision.apply != 0 && rates.is_statistic == 0)
      walk_chunk(group, args, chunk, DirectionStep<Clipping>{rule, clip, rates, decision});
  }

  KOKKOS_FUNCTION void operator()(std::int64_t index, std::int64_t begin, std::int64_t end) const {
    const StepDecision decision = *args.decision;
    const FlatChunk chunk = args.chunks[index];
    const TensorRates rates = args.rates[chunk.tensor];
    if (decision.apply == 0 || rates.is_statistic != 0) return;
    const LambRule local = rule;
    const Clipping clipped = clip;
    const float* weight = args.weight + chunk.offset;
    float *gradient = args.gradient + chunk.offset, *first = args.slot1 + chunk.offset,
          *second = args.slot2 + chunk.offset;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = decision.gradient_factor * clipped(gradient[i]);
      const float m = local.beta1 * first[i] + (1 - local.beta1) * g;
      const float v = local.beta2 * second[i] + (1 - local.beta2) * (g * g);
      first[i] = m;
      second[i] = v;
      gradient[i] =
          m / rates.bias_correction1 / (sqrtf(v / rates.bias_correction2) + local.epsilon) +
          rates.weight_decay * weight[i];
    }
  }
};

struct LambElement {
  KOKKOS_FUNCTION float operator()(float w, float direction, float&, float&,
                                   const TensorRates& rates, const StepDecision&) const {
    return w - rates.rate * rates.trust_ratio * direction;
  }
};

/// One element's step under a rule. `factor` scales the clipped gradient.
template <class Rule, int slots, class Clipping>
struct RuleStep {
  static constexpr unsigned reads = weights | gradients | slot_arrays(slots),
                            writes = weights | slot_arrays(slots);
  Rule rule;
  Clipping clip;
  float factor;
  TensorRates rates;
  StepDecision decision;
  KOKKOS_FUNCTION void operator()(float& w, float& g, float& first, float& second) const {
    w = rule(w, factor * clip(g), first, second, rates, decision);
  }
};

/// One element's step of a running statistic.
struct StatisticStep {
  static constexpr unsigned reads = weights | gradients, writes = weights;
  float rate;
  KOKKOS_FUNCTION void operator()(float& w, float& g, float&, float&) const {
    w = (1 - rate) * w + rate * g;
  }
};

/// Update of one chunk. `scales`: multiply the gradient by its factor; false if an earlier pass did
/// it.
template <class Element, int slots, class Clipping, bool scales = true>
struct UpdateChunk {
  Update args;
  Element element;
  Clipping clip;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t chunk) const {
    return args.chunks[chunk].elements;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    const StepDecision decision = *args.decision;
    const FlatChunk chunk = args.chunks[index];
    if (decision.apply == 0) return;
    const TensorRates rates = args.rates[chunk.tensor];
    if (rates.is_statistic != 0) {
      walk_chunk(group, args, chunk, StatisticStep{rates.rate});
    } else {
      walk_chunk(group, args, chunk,
                 RuleStep<Element, slots, Clipping>{
                     element, clip, scales ? decision.gradient_factor : 1, rates, decision});
    }
  }

  KOKKOS_FUNCTION void operator()(std::int64_t index, std::int64_t begin, std::int64_t end) const {
    const StepDecision decision = *args.decision;
    if (decision.apply == 0) return;
    const FlatChunk chunk = args.chunks[index];
    const TensorRates rates = args.rates[chunk.tensor];
    float* weight = args.weight + chunk.offset;
    const float* gradient = args.gradient + chunk.offset;
    if (rates.is_statistic != 0) {
      const float keep = 1 - rates.rate, take = rates.rate;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) weight[i] = keep * weight[i] + take * gradient[i];
    } else {
      const Element local = element;
      const Clipping clipped = clip;
      const float factor = scales ? decision.gradient_factor : 1;
      float *slot1 = slots > 0 ? args.slot1 + chunk.offset : nullptr,
            *slot2 = slots > 1 ? args.slot2 + chunk.offset : nullptr;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        float first = 0, second = 0;
        if constexpr (slots > 0) first = slot1[i];
        if constexpr (slots > 1) second = slot2[i];
        weight[i] = local(weight[i], factor * clipped(gradient[i]), first, second, rates, decision);
        if constexpr (slots > 0) slot1[i] = first;
        if constexpr (slots > 1) slot2[i] = second;
      }
    }
    if (args.working_weights == nullptr) return;
    // The chunk was just written, so it is read from cache.
    with_type(chunk.working_type, [&]<class T>(T) {
      const float* from = weight;
      T* to = reinterpret_cast<T*>(args.working_weights + chunk.working_offset);
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<T>(from[i]);
    });
  }
};

/// One element's step of the weight average.
struct EmaStep {
  static constexpr unsigned reads = weights | first_slots, writes = first_slots;
  float take;
  KOKKOS_FUNCTION void operator()(float& w, float&, float& average, float&) const {
    average += take * (w - average);
  }
};

/// Weight average of one chunk. The weights are in cache if the update has just written them.
struct EmaChunk {
  Update args;
  float take;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t chunk) const {
    return args.chunks[chunk].elements;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    if (args.decision->apply != 0) walk_chunk(group, args, args.chunks[index], EmaStep{take});
  }

  KOKKOS_FUNCTION void operator()(std::int64_t index, std::int64_t begin, std::int64_t end) const {
    if (args.decision->apply == 0) return;
    const std::int64_t offset = args.chunks[index].offset;
    const float factor = take;
    const float* weight = args.weight + offset;
    float* average = args.slot1 + offset;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) average[i] += factor * (weight[i] - average[i]);
  }
};

template <class Space, class Chunk>
void run_on(const Space& space, const std::string& label, const Chunk& chunk) {
  if constexpr (on_host<Space>) {
    for_each_piece(space, label, chunk.args.chunk_count, chunk);
  } else {
    for_each_team(space, label, chunk.args.chunk_count, default_team_size, chunk);
  }
}

template <class Chunk>
void run_chunks(const Stream& stream, const std::string& label, const Chunk& chunk) {
  dispatch(stream, [=, &label](const auto& space) { run_on(space, label, chunk); });
}

/// Calls body(clip) with the form of clipping for this limit: the kernels are compiled for both, so
/// that an update without clipping does not pay for it.
template <class Body>
void with_clipping(float limit, Body&& body) {
  limit < unlimited ? body(Clip{limit}) : body(NoClip{});
}

template <int slots, class Element>
void run(const Stream& stream, const std::string& label, const Element& element,
         const Update& args) {
  with_clipping(args.gradient_limit, [&]<class Clipping>(const Clipping& clip) {
    run_chunks(stream, label, UpdateChunk<Element, slots, Clipping>{args, element, clip});
  });
}

template <class Space, class Clipping>
void run_square_sums(const Space& space, const float* flat, const FlatRow* rows,
                     std::int64_t row_count, double* sums, const Clipping& clip) {
  if constexpr (on_host<Space>) {
    for_each_group(space, square_label, row_count, RowSquareSum<Clipping>{flat, rows, sums, clip});
  } else {
    // Several times the warps that a GPU holds at once; at most one row per thread.
    constexpr std::int64_t teams = 16384, max_rows_per_team = 32;
    const std::int64_t rows_per_team = row_count < 2 * teams                   ? 1
                                       : row_count < max_rows_per_team * teams ? row_count / teams
                                                                               : max_rows_per_team;
    for_each_team(space, square_label, (row_count + rows_per_team - 1) / rows_per_team,
                  RowSquareSumByTeam<Clipping>::threads,
                  RowSquareSumByTeam<Clipping>{flat, rows, row_count, rows_per_team, sums, clip});
  }
}

}  // namespace

void row_square_sums(const Stream& stream, const float* flat, const FlatRow* rows,
                     std::int64_t row_count, double* sums, float limit) {
  with_clipping(limit, [=, &stream](const auto& clip) {
    dispatch(stream,
             [=](const auto& space) { run_square_sums(space, flat, rows, row_count, sums, clip); });
  });
}

void update_sgd(const Stream& stream, const SgdRule& rule, const Update& args) {
  // SGD without momentum has no optimizer state; slot1 may be null.
  args.slot1 != nullptr ? run<1>(stream, sgd_label, SgdElement{rule}, args)
                        : run<0>(stream, sgd_label, SgdElement{rule}, args);
}
void update_lars(const Stream& stream, const Update& args) {
  run<1>(stream, lars_label, LarsElement{}, args);
}
void update_adamw(const Stream& stream, const AdamWRule& rule, const Update& args) {
  run<2>(stream, adamw_label, AdamWElement{rule}, args);
}
void lamb_direction(const Stream& stream, const LambRule& rule, const Update& args) {
  with_clipping(args.gradient_limit, [&]<class Clipping>(const Clipping& clip) {
    run_chunks(stream, lamb_direction_label, LambDirection<Clipping>{args, rule, clip});
  });
}
void update_lamb(const Stream& stream, const Update& args) {
  run_chunks(stream, lamb_label, UpdateChunk<LambElement, 0, NoClip, false>{args, {}, {}});
}
void update_ema(const Stream& stream, float take, const Update& args) {
  run_chunks(stream, ema_label, EmaChunk{args, take});
}

}  // namespace trireme::kernels
