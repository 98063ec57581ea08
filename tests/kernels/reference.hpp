// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of the ops: memory and a context, random tensors, and comparison with plain
// double-precision references.
// The ops under test run on the device that TRIREME_TEST_DEVICE names. The accessors here copy from
// and to its memory.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "support/tested_device.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::test {

using Values = std::vector<double>;

/// Element types of tensors that ops compute with.
constexpr DType compute_types[] = {DType::float32, DType::bfloat16, DType::float16};

/// Returns one stream of `kind` for the whole test program. Contexts and accessors share it, so
/// work of one is complete before the next one reads.
inline Stream test_stream(DeviceKind kind) {
  if (kind == DeviceKind::cpu || kind == DeviceKind::meta) return {{kind, 0}};
  // Never destroyed: no device outlives the end of a process.
  static const auto* const stream = new OwnedStream({kind, 0});
  TRIREME_EXPECT(stream->get().device.kind == kind);
  return *stream;
}

/// Copies the bytes of elements [index, index + count) of a tensor to host memory.
template <class Bytes>
void read_elements(const Tensor& t, std::int64_t index, std::int64_t count, Bytes& bytes) {
  const std::int64_t size = size_of(t.dtype);
  copy_bytes(test_stream(t.device), bytes.data(),
             static_cast<const std::byte*>(t.data) + index * size,
             static_cast<std::size_t>(count * size));
}

inline double host_value(const Tensor& t, std::int64_t index) {
  switch (t.dtype) {
    case DType::float32: return t.as<float>()[index];
    case DType::float64: return t.as<double>()[index];
    case DType::bfloat16: return to_float(t.as<BFloat16>()[index]);
    case DType::uint8: return t.as<std::uint8_t>()[index];
    case DType::uint16: return t.as<std::uint16_t>()[index];
    case DType::int32: return t.as<std::int32_t>()[index];
    case DType::int64: return static_cast<double>(t.as<std::int64_t>()[index]);
    case DType::float16: return to_float(t.as<Float16>()[index]);
  }
  return 0;
}

inline void set_host_value(const Tensor& t, std::int64_t index, double value) {
  switch (t.dtype) {
    case DType::float32: t.as<float>()[index] = static_cast<float>(value); return;
    case DType::float64: t.as<double>()[index] = value; return;
    case DType::bfloat16: t.as<BFloat16>()[index] = to_bfloat16(static_cast<float>(value)); return;
    case DType::uint8: t.as<std::uint8_t>()[index] = static_cast<std::uint8_t>(value); return;
    case DType::uint16: t.as<std::uint16_t>()[index] = static_cast<std::uint16_t>(value); return;
    case DType::int32: t.as<std::int32_t>()[index] = static_cast<std::int32_t>(value); return;
    case DType::int64: t.as<std::int64_t>()[index] = static_cast<std::int64_t>(value); return;
    case DType::float16: t.as<Float16>()[index] = to_float16(static_cast<float>(value)); return;
  }
}

/// Returns element `index` as a double, for any type. On a device each call is a copy: in loops use
/// values().
inline double value_at(const Tensor& t, std::int64_t index) {
  if (in_host_memory(t.device)) return host_value(t, index);
  alignas(8) std::array<std::byte, 8> one{};
  read_elements(t, index, 1, one);
  return host_value({one.data(), t.dtype, DeviceKind::cpu, {1}}, 0);
}

/// Sets one element. On a device each call is a copy: in loops build Values and assign() them.
inline void set_value(const Tensor& t, std::int64_t index, double value) {
  if (in_host_memory(t.device)) return set_host_value(t, index, value);
  alignas(8) std::array<std::byte, 8> one{};
  set_host_value({one.data(), t.dtype, DeviceKind::cpu, {1}}, 0, value);
  copy_bytes(test_stream(t.device), static_cast<std::byte*>(t.data) + index * size_of(t.dtype),
             one.data(), static_cast<std::size_t>(size_of(t.dtype)));
}

/// Returns a tensor's bytes, from any memory.
inline std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(t.bytes()));
  read_elements(t, 0, t.elements(), bytes);
  return bytes;
}

inline Values values(const Tensor& t) {
  std::vector<std::byte> bytes = bytes_of(t);
  const Tensor host{bytes.data(), t.dtype, DeviceKind::cpu, t.shape};
  Values result(static_cast<std::size_t>(t.elements()));
  for (std::int64_t i = 0; i < t.elements(); ++i) result[i] = host_value(host, i);
  return result;
}

inline void assign(const Tensor& t, const Values& v) {
  ASSERT_EQ(t.elements(), static_cast<std::int64_t>(v.size()));
  std::vector<std::byte> bytes(static_cast<std::size_t>(t.bytes()));
  const Tensor host{bytes.data(), t.dtype, DeviceKind::cpu, t.shape};
  for (std::int64_t i = 0; i < t.elements(); ++i) set_host_value(host, i, v[i]);
  copy_bytes(test_stream(t.device), t.data, bytes.data(), bytes.size());
}

/// Copies the bytes of `from` to `to`, in the same memory.
inline void copy_values(const Tensor& from, const Tensor& to) {
  ASSERT_EQ(from.bytes(), to.bytes());
  copy_bytes(test_stream(to.device), to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Returns the largest relative rounding error of storing a number in `type`: half a unit in the
/// last place.
inline double unit_roundoff(DType type) {
  return type == DType::bfloat16  ? 0x1p-8
         : type == DType::float16 ? 0x1p-11
         : type == DType::float64 ? 0x1p-53
                                  : 0x1p-24;
}

/// Returns the absolute error to add for numbers below the range of full precision: half of
/// float16's smallest number; 0 for types whose subnormal range the tests do not reach.
inline double absolute_roundoff(DType type) { return type == DType::float16 ? 0x1p-25 : 0; }

/// Expects |actual - expected| <= bounds + absolute_roundoff for every element. The message names
/// the worst element.
inline void expect_within(const Tensor& actual, const Values& expected, const Values& bounds,
                          const std::string& what = "") {
  ASSERT_EQ(actual.elements(), static_cast<std::int64_t>(expected.size())) << what;
  const Values found = values(actual);
  double worst = 0;
  std::int64_t place = -1;
  for (std::int64_t i = 0; i < actual.elements(); ++i) {
    const double excess =
        std::abs(found[i] - expected[i]) / (bounds[i] + absolute_roundoff(actual.dtype) + 1e-300);
    // A NaN exceeds the bound too.
    if (!(excess <= worst)) {
      worst = excess;
      place = i;
    }
  }
  EXPECT_TRUE(worst <= 1) << what << ": element " << place << " of " << to_string(actual.shape)
                          << " is " << found[place] << ", expected " << expected[place]
                          << "; off by " << worst << " tolerances";
}

/// Expects |actual - expected| <= absolute + relative * |expected| + absolute_roundoff for every
/// element. The message names the worst element.
inline void expect_close(const Tensor& actual, const Values& expected, double absolute,
                         double relative = 0, const std::string& what = "") {
  Values bounds(expected.size());
  for (std::size_t i = 0; i < bounds.size(); ++i)
    bounds[i] = absolute + relative * std::abs(expected[i]);
  expect_within(actual, expected, bounds, what);
}

/// Returns error bounds of a sum of `terms` float32 products that is stored in `type` (Higham 2002,
/// section 3.1): terms * u * (sum of |products|), plus the rounding of the result.
/// `magnitudes`: for each element the sum of the absolute values of its products.
inline Values sum_bounds(const Values& expected, const Values& magnitudes, double terms,
                         DType type) {
  Values bounds(expected.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = (terms + 1) * unit_roundoff(DType::float32) * magnitudes[i] +
                unit_roundoff(type) * std::abs(expected[i]) * 1.01;
  }
  return bounds;
}

inline Values magnitudes(Values v) {
  for (double& x : v) x = std::abs(x);
  return v;
}

inline void expect_same_bytes(const Tensor& a, const Tensor& b, const std::string& what = "") {
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_TRUE(bytes_of(a) == bytes_of(b)) << what;
}

/// The order in which the libraries of a device may add. `fixed`: results have the same bits in
/// every run, so tests can compare them.
enum class SumOrder : std::uint8_t { any, fixed };

/// Returns the algorithms that earlier fixtures of this program chose, so that each problem is
/// tried once.
inline ops::AlgorithmTable& chosen_algorithms() {
  static ops::AlgorithmTable table;
  return table;
}

/// Memory and a context on one device: the tested one, or `meta`, which plans for the tested one.
class OpsFixture {
 public:
  static constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
  /// cuBLASLt and cuDNN need tens of MiB for problems of any size.
  static constexpr std::int64_t library_workspace_bytes = 256 * mebibyte;
  explicit OpsFixture(DeviceKind kind = tested_device(),
                      std::int64_t capacity_bytes = 32 * mebibyte, SumOrder order = SumOrder::any)
      : tensors({kind, 0}, "tensors", capacity_bytes),
        workspace({kind, 0}, "workspace",
                  capacity_bytes + (kind == DeviceKind::cuda ? library_workspace_bytes : 0)),
        library({kind, 0}, "library", capacity_bytes),
        context(test_stream(kind), workspace, library, ops::target_of(tested_device()),
                {.deterministic = order == SumOrder::fixed, .fusions = tested_fusions()}) {
    context.algorithms().add_missing(chosen_algorithms());
    // Results that are not written, and temporaries that are read before they are written, become
    // NaN: every number whose bits are all 1.
    const auto fill = [stream = test_stream(kind)](void* data, std::int64_t bytes) {
      kernels::fill(stream, bytes / static_cast<std::int64_t>(sizeof(std::int32_t)), -1.0f,
                    static_cast<std::int32_t*>(data));
    };
    tensors.set_allocation_hook(fill);
    workspace.set_allocation_hook(fill);
    library.set_allocation_hook(fill);
  }

  ~OpsFixture() { chosen_algorithms().add_missing(context.algorithms()); }

  Tensor make(DType type, const Shape& shape) { return tensors.allocate(type, shape); }
  /// Returns a tensor of standard normal numbers times `scale`, rounded to `type`; they depend on
  /// the name only. On meta only the memory is planned.
  Tensor random(DType type, const Shape& shape, std::string_view name, double scale = 1) {
    const Tensor t = make(type, shape);
    if (t.data == nullptr) return t;
    const std::uint64_t key = random_key(1, name);
    Values numbers(static_cast<std::size_t>(t.elements()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = scale * normal_at(key, i);
    assign(t, numbers);
    return t;
  }
  Tensor filled(DType type, const Shape& shape, double value) {
    const Tensor t = make(type, shape);
    if (t.data != nullptr) assign(t, Values(static_cast<std::size_t>(t.elements()), value));
    return t;
  }
  Tensor copy_of(const Tensor& other) {
    const Tensor t = make(other.dtype, other.shape);
    if (t.data != nullptr) copy_values(other, t);
    return t;
  }
  /// Copies an array that an op takes by pointer (table, keys, transforms) into memory that its
  /// kernels can read.
  template <class T>
  const T* placed(const T* from, std::int64_t count) {
    // Ops on meta may count the contents of a table.
    if (context.meta()) return from;
    const Tensor bytes = make(DType::uint8, {count * static_cast<std::int64_t>(sizeof(T))});
    copy_bytes(context.stream(), bytes.data, from, static_cast<std::size_t>(bytes.bytes()));
    return static_cast<const T*>(bytes.data);
  }
  template <class T>
  const T* placed(const std::vector<T>& from) {
    return placed(from.data(), static_cast<std::int64_t>(from.size()));
  }

  Arena tensors, workspace, library;
  ops::Context context;
};

/// A fixture with less memory, for tests that create many: allocation takes most of their time.
class SmallOpsFixture : public OpsFixture {
 public:
  explicit SmallOpsFixture(DeviceKind kind = tested_device()) : OpsFixture(kind, 8 * mebibyte) {}
};

/// Returns the derivative of `loss` at x along v, by central differences of the double-precision
/// reference.
template <class Loss>
double directional_derivative(const Loss& loss, const Values& x, const Values& v,
                              double step = 1e-5) {
  Values plus = x, minus = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    plus[i] += step * v[i];
    minus[i] -= step * v[i];
  }
  return (loss(plus) - loss(minus)) / (2 * step);
}

}  // namespace trireme::test
