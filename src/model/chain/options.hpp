// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/ops/convolution.hpp"

namespace trireme::model::chain {

// The kinds of blocks of model.kind = "chain", each with its word and its keys. Extents are without
// the batch: an image is [height, width, channels], a text of vectors [tokens, channels], and what
// is left of a sample at the end [channels].

/// The distribution of initial weights.
enum class Distribution : std::uint8_t { he, glorot, normal, uniform, zero };
/// Key `init` of a block. he and glorot are normal with the deviation gain * sqrt(2 / fan-in) and
/// gain * sqrt(2 / (fan-in + fan-out)); normal has the deviation gain; uniform is in +-gain /
/// sqrt(fan-in).
struct Start {
  Distribution kind = Distribution::he;
  double gain = 1;
};

/// What is around an image: zeros, or the image again, as for a field with periodic boundaries.
enum class PaddingMode : std::uint8_t { zeros, periodic };
struct Conv {
  static constexpr const char* word = "conv";
  std::int64_t channels = 0, kernel = 0, stride = 1, dilation = 1;
  std::optional<ops::Padding> padding = {};  ///< none: the extents stay the same with stride 1
  PaddingMode padding_mode = PaddingMode::zeros;
  bool bias = true;
  std::optional<Start> init = {};

  ops::Padding borders() const {
    const std::int64_t sum = dilation * (kernel - 1);
    return padding.value_or(ops::Padding(sum / 2, sum - sum / 2));
  }
};

enum class NormForm : std::uint8_t { batch, group, layer, rms };
struct Norm {
  static constexpr const char* word = "norm";
  NormForm form = NormForm::batch;
  std::int64_t groups = 0;  ///< 0: 32, or the next smaller divisor of the channels
  double epsilon = 1e-5;
  bool zero_init = false;

  /// Takes the mean over all channels of a pixel or token.
  bool of_rows() const { return form == NormForm::layer || form == NormForm::rms; }
};

enum class ActivationForm : std::uint8_t { relu, gelu, silu };
struct Activation {
  static constexpr const char* word = "activation";
  ActivationForm form = ActivationForm::relu;
};

enum class PoolForm : std::uint8_t { max, mean, global };
struct Pool {
  static constexpr const char* word = "pool";
  PoolForm form = PoolForm::max;
  std::int64_t kernel = 2, stride = 0;  ///< stride 0: the kernel
  std::int64_t padding = 0;

  std::int64_t step() const { return stride > 0 ? stride : kernel; }
};

struct Upsample {
  static constexpr const char* word = "upsample";
  std::int64_t factor = 0;  ///< rows and columns that each pixel becomes
};

struct Linear {
  static constexpr const char* word = "linear";
  std::int64_t width = 0;
  bool bias = true;
  std::optional<Start> init = {};
};

struct Flatten {
  static constexpr const char* word = "flatten";
};

struct Dropout {
  static constexpr const char* word = "dropout";
  double rate = 0;
};

struct Patches {
  static constexpr const char* word = "patches";
  std::int64_t patch = 0, width = 0;
  std::optional<Start> init = {};
};

struct Positions {
  static constexpr const char* word = "positions";
  std::optional<Start> init = {};
};

struct Attention {
  static constexpr const char* word = "attention";
  std::int64_t heads = 0;
  std::optional<Start> init = {};
};

struct Transpose {
  static constexpr const char* word = "transpose";
};

struct Entry;
enum class Projection : std::uint8_t { automatic, none };
struct Residual {
  static constexpr const char* word = "residual";
  std::vector<Entry> body = {};
  Projection projection = Projection::automatic;
  double drop_path = 0;
};

using Kind = std::variant<Conv, Norm, Activation, Pool, Upsample, Linear, Flatten, Dropout, Patches,
                          Positions, Attention, Transpose, Residual>;

/// One table of model.blocks.
struct Entry {
  Kind kind;
  std::int64_t repeat = 1;
  std::int64_t line = 0;  ///< in the deck; 0: unknown

  template <class T>
  const T* as() const {
    return std::get_if<T>(&kind);
  }
  const char* word() const {
    return std::visit([](const auto& values) { return values.word; }, kind);
  }
  /// Returns the kind in words, as in "relu" or "max pool".
  std::string in_words() const;
};

/// An entry of a list whose repetitions are written out, with the name of its tensors.
struct Placed {
  const Entry* entry;
  std::string name;  ///< as in "blocks.3.body.0"

  /// Returns the name for messages, as in "blocks.3 (line 21, conv)".
  std::string in_words() const;
};

/// Returns the entries with their repetitions. The list outlives the result. `prefix`: that of the
/// names, as in "blocks".
std::vector<Placed> placed(const std::vector<Entry>& list, const std::string& prefix);

}  // namespace trireme::model::chain

namespace trireme::model {

/// Keys of [model] for kind = "chain", a network whose blocks the deck lists.
struct ChainOptions {
  std::vector<chain::Entry> blocks = {};
};

}  // namespace trireme::model
