// SPDX-License-Identifier: Apache-2.0
//
// Decides on the device whether and how a step's update is applied, so that the host need not wait.
// Called by src/ops/update/step_decision.cpp between the square sums and the update, in this order:
// - sum_lists: sums of rows to sums per tensor, one group per list;
// - decide_step: norm, clip factor, loss scale and bias corrections, in one group;
// - lars_trust or lamb_trust: trust ratios, one thread per tensor.
// Device threads load several terms at once, because each term costs two dependent loads. The host
// adds in the order of the terms. Memory traffic: the row sums, once.

#include "trireme/kernels/update/step_decision.hpp"

#include "kernels/space/row_group.hpp"

namespace trireme::kernels {
namespace {

const std::string lists_label = "trireme/kernels/sum_lists";
const std::string decide_label = "trireme/kernels/step_decision";
const std::string lars_label = "trireme/kernels/lars_trust";
const std::string lamb_label = "trireme/kernels/lamb_trust";

// Keeps the clip factor finite for a gradient of zeros; PyTorch's value
// (docs/reference/numerics.md).
constexpr double clip_epsilon = 1e-6;
// Upper limit of LAMB's trust ratio (docs/reference/numerics.md).
constexpr double max_trust_ratio = 10;

KOKKOS_INLINE_FUNCTION bool is_finite(double value) { return value - value == 0; }

KOKKOS_INLINE_FUNCTION double at_most(double limit, double value) {
  return value < limit ? value : limit;
}
KOKKOS_INLINE_FUNCTION double at_least(double limit, double value) {
  return value > limit ? value : limit;
}

/// Returns whether the loss permits the step: finite and at most loss_limit.
KOKKOS_INLINE_FUNCTION bool loss_permits_step(const DecideStepArgs& args) {
  if (args.loss == nullptr) return args.loss_finite;
  const double mean = args.loss->loss / args.loss->count;
  return args.loss_finite && is_finite(mean) && mean <= args.loss_limit;
}

/// Returns the square sum of tensor `index`; index = `tensors`: of all running statistics.
KOKKOS_INLINE_FUNCTION double squares_of(const PartialSquareSums& squares, std::int64_t index) {
  double sum = 0;
  for (std::int64_t part = 0; part < squares.parts; ++part)
    sum += squares.sums[part * (squares.tensors + 1) + index];
  return sum;
}

struct SumOfList {
  ListSums args;

  KOKKOS_FUNCTION void operator()(std::int64_t list, const HostGroup& group) const {
    const double* values = args.values;
    const std::int64_t begin = args.offsets[list];
    const std::int64_t* places = args.indices + begin;
    const Sums<1> sum =
        group.add_in_double(Sums<1>(), args.offsets[list + 1] - begin,
                            [=](std::int64_t i, double* term) { term[0] = values[places[i]]; });
    args.sums[list] = sum.value[0];
  }
};

struct SumOfListByTeam {
  static constexpr int threads = 512, unroll = 8;
  ListSums args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t list, const Group& group) const {
    const std::int64_t begin = args.offsets[list], end = args.offsets[list + 1],
                       step = group.step();
    Sums<1> sum;
    for (std::int64_t i = begin + group.first(); i < end; i += unroll * step) {
      double term[unroll];
      for (int k = 0; k < unroll; ++k)
        term[k] = i + k * step < end ? args.values[args.indices[i + k * step]] : 0.0;
      for (int k = 0; k < unroll; ++k) sum.value[0] += term[k];
    }
    group.add_up(sum);
    if (group.is_leader()) args.sums[list] = sum.value[0];
  }
};

/// Returns the part of the step's labels that counts.
KOKKOS_INLINE_FUNCTION double counted_part(const DecideStepArgs& args) {
  return args.labels > 0 && args.loss != nullptr ? args.loss->count / args.labels : 1.0;
}

struct DecideStep {
  DecideStepArgs args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    for (std::int64_t i = group.first(); i < args.tensors; i += group.step()) {
      if (args.rates[i].rule == statistic_rule) continue;
      const RuleDecays& rule = args.rules[args.rates[i].rule];
      args.rates[i].rate = args.rates[i].rate_ratio * args.learning_rate;
      args.rates[i].momentum = rule.momentum;
      // The leader changes the decision after the sum below, for which it waits for all threads.
      const auto update =
          static_cast<double>(args.decision->update_count + 1 - args.rates[i].updates_before);
      args.rates[i].bias_correction1 = static_cast<float>(1 - pow(rule.beta1, update));
      args.rates[i].bias_correction2 = static_cast<float>(1 - pow(rule.beta2, update));
    }
    const PartialSquareSums gradient = args.gradient;
    const Sums<1> weights = group.add_in_double(
        Sums<1>(), gradient.tensors,
        [=](std::int64_t i, double* term) { term[0] = squares_of(gradient, i); });
    if (!group.is_leader()) return;
    const double scale = args.loss_scale * counted_part(args);
    const double norm = sqrt(weights.value[0]) / scale;
    StepDecision decision = *args.decision;
    // A variance may overflow under a finite loss. Then the step is skipped too, because the
    // running statistics could never recover.
    const bool loss_permits = loss_permits_step(args);
    decision.apply =
        loss_permits && is_finite(norm) && is_finite(squares_of(gradient, gradient.tensors)) ? 1
                                                                                             : 0;
    decision.nonfinite_tensor = decision.apply != 0 ? -1 : last_nonfinite(gradient);
    decision.gradient_norm = norm;
    decision.gradient_factor_double =
        (args.clip_norm > 0 ? at_most(1.0, args.clip_norm / (norm + clip_epsilon)) : 1.0) / scale;
    decision.gradient_factor = static_cast<float>(decision.gradient_factor_double);
    decision.update_count += decision.apply;
    adjust_loss_scale(decision, loss_permits && !is_finite(norm));
    *args.decision = decision;
  }

  /// Returns the last tensor that is not finite, usually the first that backward reached. It
  /// returns `tensors` if only running statistics are not finite, and -1 if all are finite.
  KOKKOS_FUNCTION static std::int32_t last_nonfinite(const PartialSquareSums& squares) {
    for (std::int64_t i = squares.tensors - 1; i >= 0; --i) {
      if (!is_finite(squares_of(squares, i))) return static_cast<std::int32_t>(i);
    }
    return is_finite(squares_of(squares, squares.tensors))
               ? -1
               : static_cast<std::int32_t>(squares.tensors);
  }

  /// Lowers or raises the loss scale. Two gradients under the same scale lower it only once,
  /// because the new scale follows from the gradient's own scale.
  KOKKOS_FUNCTION void adjust_loss_scale(StepDecision& decision, bool scale_too_large) const {
    decision.overflow = scale_too_large && args.loss_scale > args.loss_scaling.min_scale ? 1 : 0;
    if (args.loss_scaling.growth_interval == 0) return;
    if (scale_too_large) {
      decision.loss_scale =
          at_least(args.loss_scaling.min_scale,
                   at_most(decision.loss_scale, args.loss_scale * args.loss_scaling.backoff));
      decision.good_steps = 0;
    } else if (decision.apply != 0 && ++decision.good_steps >= args.loss_scaling.growth_interval) {
      decision.loss_scale =
          at_most(args.loss_scaling.max_scale, decision.loss_scale * args.loss_scaling.growth);
      decision.good_steps = 0;
    }
  }
};

struct LarsRatio {
  double coefficient;
  KOKKOS_FUNCTION double operator()(double weight_norm, double gradient_norm, double decay,
                                    double factor) const {
    const double clipped = factor * gradient_norm;
    if (weight_norm == 0 || clipped == 0) return 1;
    return coefficient * weight_norm / (clipped + decay * weight_norm);
  }
};

struct LambRatio {
  KOKKOS_FUNCTION double operator()(double weight_norm, double direction_norm, double,
                                    double) const {
    if (weight_norm == 0 || direction_norm == 0) return 1;
    return at_most(max_trust_ratio, weight_norm / direction_norm);
  }
};

template <class Ratio>
struct TrustTensor {
  TrustRatioArgs args;
  Ratio ratio;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const TrustRatioTensor place = args.tensors[index];
    TensorRates& rates = args.rates[place.tensor];
    const double found = ratio(sqrt(squares_of(args.weight, place.sum_index)),
                               sqrt(squares_of(args.gradient, place.sum_index)), rates.weight_decay,
                               args.decision->gradient_factor_double);
    rates.trust_ratio = static_cast<float>(at_most(place.max, found));
    if (args.ratios != nullptr) args.ratios[place.sum_index] = rates.trust_ratio;
  }
};

template <class Ratio>
void trust(const Stream& stream, const std::string& label, const TrustRatioArgs& args,
           const Ratio& ratio) {
  dispatch(stream, [=, &label](const auto& space) {
    for_each_index(space, label, args.count, TrustTensor<Ratio>{args, ratio});
  });
}

template <class Space>
void run_lists(const Space& space, const ListSums& args) {
  if constexpr (on_host<Space>) {
    for_each_group(space, lists_label, args.lists, SumOfList{args});
  } else {
    for_each_team(space, lists_label, args.lists, SumOfListByTeam::threads, SumOfListByTeam{args});
  }
}

}  // namespace

void sum_lists(const Stream& stream, const ListSums& args) {
  dispatch(stream, [=](const auto& space) { run_lists(space, args); });
}

void decide_step(const Stream& stream, const DecideStepArgs& args) {
  dispatch(stream,
           [=](const auto& space) { for_each_group(space, decide_label, 1, DecideStep{args}); });
}

void lars_trust(const Stream& stream, double coefficient, const TrustRatioArgs& args) {
  trust(stream, lars_label, args, LarsRatio{coefficient});
}
void lamb_trust(const Stream& stream, const TrustRatioArgs& args) {
  trust(stream, lamb_label, args, LambRatio{});
}

}  // namespace trireme::kernels
