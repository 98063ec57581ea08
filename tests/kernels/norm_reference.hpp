// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reference for batch norm and group norm in double precision: x [segments, rows, channels],
// channels in `groups` groups of neighbors.

#include <omp.h>

#include <algorithm>

#include "reference.hpp"

namespace trireme::test {

struct NormReference {
  std::int64_t segments = 1, rows = 1, channels = 1, groups = 1;
  bool relu = false, add = false;
  // docs/reference/numerics.md
  double epsilon = 1e-5;

  std::int64_t elements() const { return segments * rows * channels; }
  std::int64_t group_of(std::int64_t i) const {
    return i / (rows * channels) * groups + i % channels / (channels / groups);
  }
  double group_count() const { return static_cast<double>(rows * (channels / groups)); }

  struct Statistics {
    Values mean, variance;  ///< biased, [segments, groups]
  };
  Statistics statistics(const Values& x) const {
    Statistics s{Values(segments * groups, 0.0), Values(segments * groups, 0.0)};
    for (std::int64_t i = 0; i < elements(); ++i) s.mean[group_of(i)] += x[i] / group_count();
    for (std::int64_t i = 0; i < elements(); ++i)
      s.variance[group_of(i)] += std::pow(x[i] - s.mean[group_of(i)], 2) / group_count();
    return s;
  }
  Values forward(const Values& x, const Values& gamma, const Values& beta, const Values& residual,
                 const Statistics& s) const {
    Values y(x.size());
    for (std::int64_t i = 0; i < elements(); ++i) {
      const std::int64_t g = group_of(i), c = i % channels;
      y[i] = gamma[c] * (x[i] - s.mean[g]) / std::sqrt(s.variance[g] + epsilon) + beta[c] +
             (add ? residual[i] : 0);
      if (relu) y[i] = std::max(y[i], 0.0);
    }
    return y;
  }
  Values forward(const Values& x, const Values& gamma, const Values& beta,
                 const Values& residual) const {
    return forward(x, gamma, beta, residual, statistics(x));
  }

  struct Gradients {
    Values dx, dresidual, dgamma, dbeta;
    /// sums of the terms' absolute values, to which the rounding errors of the sums are relative
    Values dgamma_terms, dbeta_terms;
  };
  /// Returns the gradients. `y` shows which elements passed the activation.
  Gradients backward(const Values& x, const Values& y, const Values& dy,
                     const Values& gamma) const {
    const Statistics s = statistics(x);
    Gradients r{Values(x.size()),      Values(x.size()),      Values(channels, 0.0),
                Values(channels, 0.0), Values(channels, 0.0), Values(channels, 0.0)};
    Values level(segments * groups, 0.0), slope(segments * groups, 0.0), normal(x.size());
    for (std::int64_t i = 0; i < elements(); ++i) {
      const std::int64_t g = group_of(i), c = i % channels;
      normal[i] = (x[i] - s.mean[g]) / std::sqrt(s.variance[g] + epsilon);
      r.dresidual[i] = relu && !(y[i] > 0) ? 0 : dy[i];
      r.dbeta[c] += r.dresidual[i];
      r.dgamma[c] += r.dresidual[i] * normal[i];
      r.dbeta_terms[c] += std::abs(r.dresidual[i]);
      r.dgamma_terms[c] += std::abs(r.dresidual[i] * normal[i]);
      level[g] += gamma[c] * r.dresidual[i] / group_count();
      slope[g] += gamma[c] * r.dresidual[i] * normal[i] / group_count();
    }
    for (std::int64_t i = 0; i < elements(); ++i) {
      const std::int64_t g = group_of(i);
      r.dx[i] = (gamma[i % channels] * r.dresidual[i] - level[g] - normal[i] * slope[g]) /
                std::sqrt(s.variance[g] + epsilon);
    }
    return r;
  }
};

inline double largest(const Values& v) {
  double result = 0;
  for (const double x : v) result = std::max(result, std::abs(x));
  return result;
}

/// Compares the reference's own gradients with central differences of its forward pass, element by
/// element.
inline void expect_reference_gradients(const NormReference& norm) {
  const auto numbers = [](std::int64_t count, std::string_view name) {
    Values v(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      v[i] = normal_at(random_key(1, name), static_cast<std::uint64_t>(i));
    return v;
  };
  const Values x = numbers(norm.elements(), "x"), residual = numbers(norm.elements(), "residual"),
               dy = numbers(norm.elements(), "dy");
  const Values gamma = numbers(norm.channels, "gamma"), beta = numbers(norm.channels, "beta");
  const auto gradients = norm.backward(x, norm.forward(x, gamma, beta, residual), dy, gamma);
  // Central differences: the truncation error is step^2 times a third derivative (small powers of
  // rstd ~ 1), the rounding error 1e-16 / step.
  const auto check = [&](const Values& at, const Values& gradient, auto loss) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      Values direction(at.size(), 0.0);
      direction[i] = 1;
      EXPECT_NEAR(gradient[i], directional_derivative(loss, at, direction),
                  1e-7 * (1 + largest(gradient)));
    }
  };
  check(x, gradients.dx,
        [&](const Values& v) { return dot(norm.forward(v, gamma, beta, residual), dy); });
  check(gamma, gradients.dgamma,
        [&](const Values& v) { return dot(norm.forward(x, v, beta, residual), dy); });
  check(beta, gradients.dbeta,
        [&](const Values& v) { return dot(norm.forward(x, gamma, v, residual), dy); });
  if (norm.add)
    check(residual, gradients.dresidual,
          [&](const Values& v) { return dot(norm.forward(x, gamma, beta, v), dy); });
}

/// Compares float32 sums of at most 128 numbers (the rest is in double): each term has at most 128
/// roundings, and far fewer on average.
inline void expect_sums_close(const Tensor& actual, const Values& expected, const Values& terms,
                              double mean_error = 0) {
  for (std::int64_t c = 0; c < actual.elements(); ++c) {
    EXPECT_NEAR(value_at(actual, c), expected[c], (128 * 0x1p-24 + mean_error) * terms[c] + 1e-30)
        << "channel " << c;
  }
}

/// Returns whether kernels add in the order of their terms: on the host they do, on a device they
/// have a fixed order of their own.
inline bool adds_in_order() {
  return ops::target_of(tested_device()) == DeviceKind::cpu && !kernels_in_device_form;
}

/// Runs a kernel inside a parallel region, so that it uses one thread or another number of threads.
/// Kokkos before 5 runs it on the calling thread; later versions use a nested team if that is
/// allowed, and abort otherwise.
/// The first thread makes the call, because only it may start Kokkos' teams.
template <class Run>
void on_one_thread(const Run& run) {
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(2);
#pragma omp parallel num_threads(2)
#pragma omp master
  run();
  omp_set_max_active_levels(levels);
}

}  // namespace trireme::test
