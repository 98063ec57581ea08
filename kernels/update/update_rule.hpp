// SPDX-License-Identifier: Apache-2.0
#pragma once

// The pass of an optimizer's rule over the flat buffers, for a kernel file of each rule to include.
//
// A rule is a functor on the values of one element:
//
//   static constexpr int slots = 2;
//   static constexpr Pass pass = Pass::whole;
//   float operator()(float w, float g, float& first, float& second,
//                    const TensorRates& rates) const;
//
// It updates its slots in place and returns the new weight, or the direction of the step. A rule
// with fewer slots finds 0 in the others.
//
// Plan: one work item per chunk. A chunk belongs to one tensor, so its rates are constants of the
// inner loop. An element's result does not depend on the partition into chunks. A functor on
// (chunk, begin, end) is the host form, one on (chunk, group) the device form (update_device.hpp).
// Memory traffic: weight, gradient and slots are read once; weight, slots and the working copy are
// written once.

#include "clipping.hpp"
#include "kernels/space/row_group.hpp"
#include "update_device.hpp"

namespace trireme::kernels {

/// The result of a pass over a gradient.
enum class Pass : std::uint8_t {
  whole,           ///< the new weight, from the clipped and scaled gradient
  direction,       ///< the direction of the step, which takes the place of the gradient
  along_direction  ///< the new weight, from that direction
};

/// One element's step under a rule. `factor` scales the clipped gradient.
template <class Rule, class Clipping>
struct RuleStep {
  static constexpr int slots = Rule::slots;
  static constexpr bool makes_direction = Rule::pass == Pass::direction;
  static constexpr unsigned reads = weights | gradients,
                            writes = makes_direction ? gradients : weights;
  Rule rule;
  Clipping clip;
  float factor;
  TensorRates rates;
  KOKKOS_FUNCTION void operator()(float& w, float& g, float& first, float& second) const {
    (makes_direction ? g : w) = rule(w, factor * clip(g), first, second, rates);
  }
};

/// One element's step of a running statistic.
struct StatisticStep {
  static constexpr int slots = 0;
  static constexpr unsigned reads = weights | gradients, writes = weights;
  float rate;
  KOKKOS_FUNCTION void operator()(float& w, float& g, float&, float&) const {
    w = (1 - rate) * w + rate * g;
  }
};

/// Update of one chunk.
template <class Rule, class Clipping>
struct RuleChunk {
  static constexpr int slots = Rule::slots;
  static constexpr bool makes_direction = Rule::pass == Pass::direction;
  Update args;
  Rule rule;
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
    if (rates.rule != statistic_rule) {
      walk_chunk(group, args, chunk,
                 RuleStep<Rule, Clipping>{rule, clip, factor_of(decision), rates});
    } else if constexpr (!makes_direction) {
      walk_chunk(group, args, chunk, StatisticStep{rates.rate});
    }
  }

  KOKKOS_FUNCTION void operator()(std::int64_t index, std::int64_t begin, std::int64_t end) const {
    const StepDecision decision = *args.decision;
    if (decision.apply == 0) return;
    const FlatChunk chunk = args.chunks[index];
    const TensorRates rates = args.rates[chunk.tensor];
    float *weight = args.weight + chunk.offset, *gradient = args.gradient + chunk.offset;
    if (rates.rule != statistic_rule) {
      const Rule local = rule;
      const Clipping clipped = clip;
      const float factor = factor_of(decision);
      float* result = makes_direction ? gradient : weight;
      float *slot1 = slots > 0 ? args.slots[0] + chunk.offset : nullptr,
            *slot2 = slots > 1 ? args.slots[1] + chunk.offset : nullptr;
      // The slots of an element are scalars: GCC vectorizes no loop whose body has arrays.
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        float first = 0, second = 0;
        if constexpr (slots > 0) first = slot1[i];
        if constexpr (slots > 1) second = slot2[i];
        result[i] = local(weight[i], factor * clipped(gradient[i]), first, second, rates);
        if constexpr (slots > 0) slot1[i] = first;
        if constexpr (slots > 1) slot2[i] = second;
      }
    } else if constexpr (!makes_direction) {
      const float keep = 1 - rates.rate, take = rates.rate;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) weight[i] = keep * weight[i] + take * gradient[i];
    }
    if (makes_direction || args.working_weights == nullptr) return;
    // The chunk was just written, so it is read from cache.
    with_type(chunk.working_type, [&]<class T>(T) {
      const float* from = weight;
      T* to = reinterpret_cast<T*>(args.working_weights + chunk.working_offset);
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<T>(from[i]);
    });
  }

  /// Returns the factor of the gradient.
  KOKKOS_FUNCTION static float factor_of(const StepDecision& decision) {
    return Rule::pass == Pass::along_direction ? 1 : decision.gradient_factor;
  }
};

template <class Space, class Chunk>
void run_chunks_on(const Space& space, const std::string& label, const Chunk& chunk) {
  if constexpr (on_host<Space>) {
    for_each_piece(space, label, chunk.args.chunk_count, chunk);
  } else {
    for_each_team(space, label, chunk.args.chunk_count, default_team_size, chunk);
  }
}

/// Enqueues a functor on chunks. `label` must live as long as the program.
template <class Chunk>
void run_chunks(const Stream& stream, const std::string& label, const Chunk& chunk) {
  dispatch(stream, [=, &label](const auto& space) { run_chunks_on(space, label, chunk); });
}

/// Enqueues the pass of a rule.
template <class Rule>
void run_rule(const Stream& stream, const std::string& label, const Rule& rule,
              const Update& args) {
  if constexpr (Rule::pass == Pass::along_direction) {
    run_chunks(stream, label, RuleChunk<Rule, NoClip>{args, rule, {}});
  } else {
    with_clipping(args.gradient_limit, [&]<class Clipping>(const Clipping& clip) {
      run_chunks(stream, label, RuleChunk<Rule, Clipping>{args, rule, clip});
    });
  }
}

}  // namespace trireme::kernels
