#include "trireme/kernels/judge.hpp"

#include "row_group.hpp"

// A list a group (a device's threads take some terms at once: a term is two loads, one after the
// other), then the whole judgement in one group, then a tensor a thread. On the host sums are made
// in the order in which their terms stand. Bytes: those of the sums of rows, once.

namespace trireme::kernels {
namespace {

const std::string lists_label = "trireme/kernels/sum_lists";
const std::string judge_label = "trireme/kernels/judge";
const std::string lars_label = "trireme/kernels/lars_trust";
const std::string lamb_label = "trireme/kernels/lamb_trust";

// keeps the clip factor finite for a gradient of zeros; PyTorch's value (contract, section 7)
constexpr double clip_epsilon = 1e-6;
// lamb's trust ratio is at most this (contract, section 7)
constexpr double largest_trust = 10;

KOKKOS_INLINE_FUNCTION bool is_finite(double value) { return value - value == 0; }

KOKKOS_INLINE_FUNCTION double at_most(double limit, double value) {
  return value < limit ? value : limit;
}
KOKKOS_INLINE_FUNCTION double at_least(double limit, double value) {
  return value > limit ? value : limit;
}

/// Whether the loss lets the step be applied.
KOKKOS_INLINE_FUNCTION bool is_good(const Judge& args) {
  if (args.loss == nullptr) return args.loss_finite;
  const double mean = args.loss->loss / args.loss->count;
  return args.loss_finite && is_finite(mean) && mean <= args.loss_limit;
}

/// Of tensor `index`; of all statistics at `tensors`.
KOKKOS_INLINE_FUNCTION double squares_of(const SquareParts& squares, std::int64_t index) {
  double sum = 0;
  for (std::int64_t part = 0; part < squares.parts; ++part)
    sum += squares.sums[part * (squares.tensors + 1) + index];
  return sum;
}

struct SumOfList {
  ListSums args;

  KOKKOS_FUNCTION void operator()(std::int64_t list, const HostGroup& group) const {
    const double* values = args.values;
    const std::int64_t begin = args.begins[list];
    const std::int64_t* places = args.places + begin;
    const Sums<1> sum =
        group.add_in_double(Sums<1>(), args.begins[list + 1] - begin,
                            [=](std::int64_t i, double* term) { term[0] = values[places[i]]; });
    args.sums[list] = sum.value[0];
  }
};

struct SumOfListByTeam {
  static constexpr int threads = 512, unroll = 8;
  ListSums args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t list, const Group& group) const {
    const std::int64_t begin = args.begins[list], end = args.begins[list + 1], step = group.step();
    Sums<1> sum;
    for (std::int64_t i = begin + group.first(); i < end; i += unroll * step) {
      double term[unroll];
      for (int k = 0; k < unroll; ++k)
        term[k] = i + k * step < end ? args.values[args.places[i + k * step]] : 0.0;
      for (int k = 0; k < unroll; ++k) sum.value[0] += term[k];
    }
    group.add_up(sum);
    if (group.leads()) args.sums[list] = sum.value[0];
  }
};

struct JudgeStep {
  Judge args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    for (std::int64_t i = group.first(); i < args.tensors; i += group.step()) {
      if (args.rates[i].statistic == 0) args.rates[i].rate = args.rate;
    }
    const SquareParts gradient = args.gradient;
    const Sums<1> weights = group.add_in_double(
        Sums<1>(), gradient.tensors,
        [=](std::int64_t i, double* term) { term[0] = squares_of(gradient, i); });
    if (!group.leads()) return;
    const double norm = sqrt(weights.value[0]) / args.scale;
    Judgement judgement = *args.judgement;
    const double update = static_cast<double>(judgement.updates + 1);
    // A variance may overflow under a finite loss; then the step is dropped too, or the running
    // statistics would never recover.
    const bool good = is_good(args);
    judgement.apply =
        good && is_finite(norm) && is_finite(squares_of(gradient, gradient.tensors)) ? 1 : 0;
    judgement.norm = norm;
    judgement.factor =
        (args.clip_norm > 0 ? at_most(1.0, args.clip_norm / (norm + clip_epsilon)) : 1.0) /
        args.scale;
    judgement.gradient_factor = static_cast<float>(judgement.factor);
    judgement.bias_correction1 = static_cast<float>(1 - pow(args.beta1, update));
    judgement.bias_correction2 = static_cast<float>(1 - pow(args.beta2, update));
    judgement.updates += judgement.apply;
    move_scale(judgement, good && !is_finite(norm));
    *args.judgement = judgement;
  }

  /// Two gradients seeded with one scale lower it once.
  KOKKOS_FUNCTION void move_scale(Judgement& judgement, bool too_large) const {
    judgement.overflow = too_large && args.scale > args.scaling.least ? 1 : 0;
    if (args.scaling.interval == 0) return;
    if (too_large) {
      judgement.loss_scale = at_least(
          args.scaling.least, at_most(judgement.loss_scale, args.scale * args.scaling.backoff));
      judgement.good_steps = 0;
    } else if (judgement.apply != 0 && ++judgement.good_steps >= args.scaling.interval) {
      judgement.loss_scale = at_most(args.scaling.most, judgement.loss_scale * args.scaling.growth);
      judgement.good_steps = 0;
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
    return at_most(largest_trust, weight_norm / direction_norm);
  }
};

template <class Ratio>
struct TrustTensor {
  Trust args;
  Ratio ratio;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const TrustedTensor place = args.tensors[index];
    TensorRates& rates = args.rates[place.tensor];
    rates.trust = static_cast<float>(ratio(sqrt(squares_of(args.weight, place.sum)),
                                           sqrt(squares_of(args.gradient, place.sum)),
                                           rates.weight_decay, args.judgement->factor));
  }
};

template <class Ratio>
void trust(const Stream& stream, const std::string& label, const Trust& args, const Ratio& ratio) {
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

void judge(const Stream& stream, const Judge& args) {
  dispatch(stream,
           [=](const auto& space) { for_each_group(space, judge_label, 1, JudgeStep{args}); });
}

void lars_trust(const Stream& stream, double coefficient, const Trust& args) {
  trust(stream, lars_label, args, LarsRatio{coefficient});
}
void lamb_trust(const Stream& stream, const Trust& args) {
  trust(stream, lamb_label, args, LambRatio{});
}

}  // namespace trireme::kernels
