#pragma once

#include <cstdint>

#include "trireme/parallel/flat_layout.hpp"
#include "trireme/parallel/parameter.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::parallel {

/// The flat buffers of this rank: float32 master weights, the compute copy (where compute is not float32) and the gradient that backward
/// writes to now. Views by parameter are in memory order (ParameterSpec::memory_shape).
class ParameterStore {
 public:
  /// Memory comes from `parameters` (master, compute) and `gradients` (one buffer; GradientReducer takes more from it).
  ParameterStore(const ParameterList& list, const FlatLayout& layout, DType compute, Arena& parameters, Arena& gradients);

  /// Fills the master weights with their initial values and makes the compute copy.
  void initialize(std::uint64_t seed);
  /// Makes the compute copy from the master weights anew (after a restart) and gives the weights a new version.
  void refresh_compute();

  const ParameterList& list() const { return *list_; }
  const FlatLayout& layout() const { return *layout_; }
  DType compute_type() const { return compute_type_; }

  /// float32, in memory order.
  Tensor master(ParameterId id) const { return view(master_, id); }
  /// In compute precision where the parameter has a compute copy, else the float32 master.
  Tensor weight(ParameterId id) const;
  /// float32: where backward writes now.
  Tensor gradient(ParameterId id) const { return view(gradient_, id); }

  const Tensor& flat_master() const { return master_; }
  /// Undefined where compute is float32.
  const Tensor& flat_compute() const { return compute_; }
  const Tensor& flat_gradient() const { return gradient_; }
  /// Redirects gradient() to another flat buffer of the same size (the levels of the deterministic tree).
  void set_gradient(const Tensor& flat) { gradient_ = flat; }

  /// Changes with every update of the weights: prepared forms are made anew.
  std::uint64_t version() const { return version_; }
  void weights_changed() { ++version_; }

 private:
  Tensor view(const Tensor& flat, ParameterId id) const;
  const ParameterList* list_;
  const FlatLayout* layout_;
  DType compute_type_;
  Tensor master_, compute_, gradient_;
  std::uint64_t version_ = 1;
};

}  // namespace trireme::parallel
