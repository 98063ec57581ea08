// SPDX-License-Identifier: Apache-2.0
//
// Makes blocks and head of a chain from the deck's list, and checks that each block fits the one in
// front of it.
//
//   list      conv  norm  activation  residual  activation  pool  linear
//   layers    [   NormLayer       ]   [ ResidualLayer   ]   Pool  RowsLinearLayer
//   blocks    blocks.0                blocks.3                    head
//
// A convolution, the norm and the ReLU behind it are one layer, as are a residual whose body ends
// with a norm and the ReLU behind it. A block begins at each entry with a matrix product; norms,
// activations, pools and the like belong to the block in front of them. The last one is the head.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "blocks.hpp"
#include "parts.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::model::chain {
namespace {

using parallel::Initializer;
using FusedActivation = ImageNorm::FusedActivation;

// As in GPT-2 and in timm's vision transformers.
constexpr double attention_deviation = 0.02;
// Numbers of a sample between two blocks: products with the extents of a deck do not overflow.
constexpr std::int64_t max_elements = std::int64_t{1} << 31;

/// Returns whether a block of the model begins at this entry.
bool begins_block(const Entry& entry) {
  return entry.as<Conv>() || entry.as<Linear>() || entry.as<Patches>() || entry.as<Attention>() ||
         entry.as<Residual>();
}

Initializer distribution_of(const Start& start, double fan_in, double fan_out) {
  switch (start.kind) {
    case Distribution::he: return {Initializer::Kind::normal, start.gain * std::sqrt(2 / fan_in)};
    case Distribution::glorot:
      return {Initializer::Kind::normal, start.gain * std::sqrt(2 / (fan_in + fan_out))};
    case Distribution::normal: return {Initializer::Kind::normal, start.gain};
    case Distribution::uniform: return {Initializer::Kind::uniform, start.gain / std::sqrt(fan_in)};
    case Distribution::zero: break;
  }
  return {Initializer::Kind::constant, 0};
}

/// Makes layers one after the other.
class Builder {
 public:
  Builder(const std::vector<Entry>& list, std::int64_t batch, const Shape& sample)
      : list_(placed(list, "blocks")),
        has_attention_(contains(list, [](const Entry& entry) { return entry.as<Attention>(); })),
        batch_(batch),
        shape_(sample) {
    before_ = fmt::format("the data, images of {}", to_string(sample));
  }

  std::vector<Group> groups() {
    std::vector<Group> all;
    bool begun = false;
    for (std::size_t i = 0; i < list_.size();) {
      if (all.empty() || (begun && begins_block(*list_[i].entry)))
        all.push_back({list_[i].name, {}, {}, {}});
      begun = begun || begins_block(*list_[i].entry);
      Group& group = all.back();
      for (std::size_t end = i + add(list_, i, FusedActivation::none, group.layers); i < end; ++i)
        group.contents +=
            fmt::format("{}{}", group.contents.empty() ? "" : ", ", list_[i].entry->in_words());
      group.output = shape_;
    }
    return all;
  }
  /// Returns what gives the shape that is reached, in words.
  const std::string& before() const { return before_; }

 private:
  using List = std::vector<Placed>;

  /// Adds the layer that begins at entry `i`. `end`: the operations that follow the last norm of
  /// the list. Returns the number of entries that the layer takes.
  std::size_t add(const List& list, std::size_t i, FusedActivation end, Layers& layers) {
    const Placed& placed = list[i];
    const std::size_t taken = std::visit(
        [&]<class T>(const T& values) {
          if constexpr (std::is_same_v<T, Conv> || std::is_same_v<T, Norm> ||
                        std::is_same_v<T, Residual>)
            return add(values, list, i, end, layers);
          else
            return add(values, placed, list, i, layers);
        },
        placed.entry->kind);
    const std::string last = list[i + taken - 1].in_words();
    require_countable(last + " gives", shape_);
    before_ = fmt::format("{}, which gives {}", last, to_string(shape_));
    return taken;
  }

  /// Throws InputError if a tensor of such samples has too many numbers or rows. `what` begins the
  /// message, as in "blocks.3 (conv) gives".
  void require_countable(const std::string& what, const Shape& shape) const {
    validate(shape.elements() <= max_elements,
             "model.blocks: {} {}, more than {} numbers a sample; use smaller extents", what,
             to_string(shape), max_elements);
    const std::int64_t rows = shape.elements() / shape.back();
    const std::int64_t most = std::max<std::int64_t>(ops::max_rows / rows, 1);
    validate(batch_ <= most,
             "batch.micro = {}: {} {}, more rows in a micro-batch than a matrix product can "
             "count ({}); use {}{}",
             batch_, what, to_string(shape), ops::max_rows, most, most > 1 ? " or less" : "");
  }

  /// Throws InputError unless the shape that is reached has one of these numbers of extents.
  void require(const Placed& placed, bool fits, const char* wanted, const char* advice) const {
    validate(fits, "model.blocks: {} takes {}, but is behind {}; {}", placed.in_words(), wanted,
             before_, advice);
  }
  void require_image(const Placed& placed) const {
    require(placed, shape_.rank() == 3, "an image [height, width, channels]",
            "move it in front of patches, flatten, linear or a global pool");
  }
  void require_tokens(const Placed& placed) const {
    require(placed, shape_.rank() == 2, "tokens [tokens, channels]",
            "make tokens with patches in front of it");
  }

  /// Throws InputError if a norm would normalize single numbers, which all become 0.
  void require_several(const Placed& placed, std::int64_t count) const {
    validate(count > 1,
             "model.blocks: {} normalizes each number of {} by itself, so that all become the "
             "same; use fewer groups, another norm, or leave it out",
             placed.in_words(), before_);
  }
  static std::int64_t group_count(const Norm& norm, std::int64_t channels) {
    return norm.groups > 0 ? norm.groups : ImageNorm::default_groups(channels);
  }

  template <class T>
  const T* next(const List& list, std::size_t i) const {
    return i + 1 < list.size() ? list[i + 1].entry->as<T>() : nullptr;
  }
  bool relu_at(const List& list, std::size_t i) const {
    const auto* activation = i < list.size() ? list[i].entry->as<Activation>() : nullptr;
    return activation && activation->form == ActivationForm::relu;
  }
  /// Returns the distribution of the weights of entry `i`.
  Initializer start_of(const std::optional<Start>& given, const List& list, std::size_t i,
                       double fan_in, double fan_out) const {
    if (given) return distribution_of(*given, fan_in, fan_out);
    if (has_attention_) return {Initializer::Kind::normal, attention_deviation};
    bool activates = list[i].entry->as<Conv>() != nullptr;
    for (std::size_t k = i + 1; k < list.size() && !begins_block(*list[k].entry); ++k)
      activates = activates || list[k].entry->as<Activation>();
    return distribution_of({.kind = activates ? Distribution::he : Distribution::uniform}, fan_in,
                           fan_out);
  }

  /// Sets the shape behind windows, as of a convolution, and checks that there is one.
  void take_windows(const Placed& placed, const Convolution2d::Sizes& windows) {
    const std::int64_t borders = windows.padding.sum() + windows.wrapped.sum(),
                       window = windows.dilation * (windows.kernel - 1) + 1;
    const auto extent = [&](std::int64_t size) {
      return (size + borders - window) / windows.stride + 1;
    };
    const bool is_dilated = windows.dilation > 1;
    require(
        placed, std::min(shape_[0], shape_[1]) + borders >= window,
        is_dilated ? "an image as large as its dilated kernel" : "an image as large as its kernel",
        is_dilated ? "use a smaller kernel or dilation, or fewer pools in front of it"
                   : "use a smaller kernel, or fewer pools in front of it");
    shape_ = {extent(shape_[0]), extent(shape_[1]), windows.out};
    stride_ = std::min(stride_ * windows.stride, max_elements);
  }

  /// Checks that the image can be continued by these rows and columns of its opposite edges.
  void require_wrap(const Placed& placed, const ops::Padding& wrapped) const {
    const std::int64_t given = std::max(wrapped.before, wrapped.after),
                       most = std::min(shape_[0], shape_[1]);
    validate(given <= most,
             "model.blocks: {}: padding_mode = \"periodic\" with {} rows and columns on a side is "
             "more than the {} x {} pixels of {}; use at most {}: a smaller padding, kernel or "
             "dilation",
             placed.in_words(), given, shape_[0], shape_[1], before_, most);
    require_countable(placed.in_words() + " with its periodic borders takes",
                      {shape_[0] + wrapped.sum(), shape_[1] + wrapped.sum(), shape_[2]});
  }

  std::size_t add(const Conv& conv, const List& list, std::size_t i, FusedActivation end,
                  Layers& layers) {
    const Placed& placed = list[i];
    require_image(placed);
    const bool is_periodic = conv.padding_mode == PaddingMode::periodic;
    const Convolution2d::Sizes sizes{.in = shape_[2],
                                     .out = conv.channels,
                                     .kernel = conv.kernel,
                                     .stride = conv.stride,
                                     .padding = is_periodic ? 0 : conv.borders(),
                                     .dilation = conv.dilation,
                                     .wrapped = is_periodic ? conv.borders() : 0};
    if (is_periodic) require_wrap(placed, sizes.wrapped);
    const auto window = static_cast<double>(conv.kernel * conv.kernel);
    const Initializer start = start_of(conv.init, list, i, window * static_cast<double>(sizes.in),
                                       window * static_cast<double>(sizes.out));
    take_windows(placed, sizes);
    const auto* norm = next<Norm>(list, i);
    if (conv.bias || !norm || norm->of_rows()) {
      layers.add(std::make_unique<ConvLayer>(placed.name, sizes, start, conv.bias));
      return 1;
    }
    return 1 + add_norm(*norm, list, i + 1, end, Convolution2d(placed.name, sizes, start), layers);
  }

  std::size_t add(const Norm& norm, const List& list, std::size_t i, FusedActivation end,
                  Layers& layers) {
    if (!norm.of_rows()) return add_norm(norm, list, i, end, std::nullopt, layers);
    require_several(list[i], shape_.back());
    layers.add(std::make_unique<ChannelNormLayer>(
        list[i].name,
        RowNormLayer::Options{.kind = norm.form == NormForm::rms ? NormKind::rms : NormKind::layer,
                              .width = shape_.back(),
                              .epsilon = norm.epsilon,
                              .rows_are_held = false},
        norm.zero_init));
    return 1;
  }

  /// Adds the batch or group norm at entry `i`, with the ReLU behind it. Returns the number of
  /// entries from `i` on.
  std::size_t add_norm(const Norm& norm, const List& list, std::size_t i, FusedActivation end,
                       std::optional<Convolution2d> convolution, Layers& layers) {
    const Placed& placed = list[i];
    const std::int64_t channels = shape_.back();
    if (norm.groups > 0 && channels % norm.groups != 0)
      throw InputError(
          fmt::format("model.blocks: {}: groups = {} does not divide the {} channels of {}; use {}",
                      placed.in_words(), norm.groups, channels, before_,
                      nearest_divisors(norm.groups, channels)));
    ImageNormKind kind = ImageNormKind::batch;
    if (norm.form == NormForm::group) {
      kind = ImageNormKind::group;
      require_several(placed, shape_.elements() / group_count(norm, channels));
    }
    const bool is_last = i + 1 == list.size(), relu = relu_at(list, i + 1);
    const FusedActivation activation = is_last ? end
                                       : relu  ? FusedActivation::relu
                                               : FusedActivation::none;
    ImageNorm image_norm(placed.name, kind, channels, activation, norm.zero_init, norm.groups);
    layers.add(std::make_unique<NormLayer>(std::move(convolution), std::move(image_norm),
                                           activation == FusedActivation::add_relu));
    return activation == FusedActivation::relu ? 2 : 1;
  }

  std::size_t add(const Residual& residual, const List& list, std::size_t i,
                  FusedActivation /*end*/, Layers& layers) {
    const Placed& placed = list[i];
    const Shape input = shape_;
    const std::string input_words = before_;
    const std::int64_t outer_stride = std::exchange(stride_, 1),
                       outer_enlargement = std::exchange(enlargement_, 1);
    const List body = chain::placed(residual.body, placed.name + ".body");
    const auto* last = body.back().entry->as<Norm>();
    const bool joins_relu =
        last && !last->of_rows() && residual.drop_path == 0 && relu_at(list, i + 1);
    Layers inner;
    for (std::size_t k = 0; k < body.size();)
      k += add(body, k, joins_relu ? FusedActivation::add_relu : FusedActivation::none, inner);
    Layers projection;
    if (!(shape_ == input)) add_projection(residual, placed, input, input_words, last, projection);
    stride_ = std::min(stride_ * outer_stride, max_elements);
    enlargement_ = std::min(enlargement_ * outer_enlargement, max_elements);
    layers.add(std::make_unique<ResidualLayer>(placed.name, std::move(inner), std::move(projection),
                                               residual.drop_path));
    return joins_relu ? 2 : 1;
  }

  /// Adds what brings the input of a residual to the shape of its body's output: a convolution of
  /// single pixels, or a linear layer, without bias, and a norm like the body's last one.
  void add_projection(const Residual& residual, const Placed& placed, const Shape& input,
                      const std::string& input_words, const Norm* norm, Layers& projection) const {
    const auto mismatch = [&](const char* advice) {
      return InputError(
          fmt::format("model.blocks: {}: its body gives {}, but the input, of {}, is {}; {}",
                      placed.in_words(), to_string(shape_), input_words, to_string(input), advice));
    };
    if (residual.projection == Projection::none)
      throw mismatch("use a body that keeps the extents, or projection = \"auto\"");
    const std::string name = placed.name + ".projection.";
    const Initializer start = distribution_of({}, static_cast<double>(input.back()), 1);
    const std::int64_t in = input.back(), out = shape_.back();
    if (input.rank() == shape_.rank() && input.rank() < 3 &&
        (input.rank() == 1 || input[0] == shape_[0])) {
      projection.add(std::make_unique<RowsLinearLayer>(name + "0", in, out, start, false));
      return;
    }
    const std::int64_t stride = stride_ / enlargement_;
    const bool fits = input.rank() == 3 && shape_.rank() == 3 && stride_ % enlargement_ == 0 &&
                      (input[0] - 1) / stride + 1 == shape_[0] &&
                      (input[1] - 1) / stride + 1 == shape_[1];
    if (!fits) throw mismatch("no projection does this; use a body that keeps rows and columns");
    const Convolution2d::Sizes sizes{
        .in = in, .out = out, .stride = std::min(stride, std::max(input[0], input[1]))};
    if (!norm || norm->of_rows()) {
      projection.add(std::make_unique<ConvLayer>(name + "0", sizes, start, false));
      return;
    }
    ImageNorm image_norm(
        name + "1", norm->form == NormForm::batch ? ImageNormKind::batch : ImageNormKind::group,
        out, FusedActivation::none, false, norm->groups);
    projection.add(std::make_unique<NormLayer>(Convolution2d(name + "0", sizes, start),
                                               std::move(image_norm), false));
  }

  std::size_t add(const Activation& activation, const Placed& /*placed*/, const List& /*list*/,
                  std::size_t /*i*/, Layers& layers) {
    const bool in_place = !layers.empty() && !layers.last().reads_output();
    layers.add(std::make_unique<ActivationLayer>(activation.form, in_place));
    return 1;
  }

  std::size_t add(const Pool& pool, const Placed& placed, const List& /*list*/, std::size_t /*i*/,
                  Layers& layers) {
    if (pool.form == PoolForm::global) {
      require(placed, shape_.rank() > 1, "pixels or tokens", "remove it");
      layers.add(std::make_unique<GlobalPoolLayer>(shape_));
      shape_ = {shape_.back()};
      return 1;
    }
    require_image(placed);
    const ops::Pooling pooling{.height = shape_[0],
                               .width = shape_[1],
                               .channels = shape_[2],
                               .kernel = pool.kernel,
                               .stride = pool.step(),
                               .padding = pool.padding};
    take_windows(placed, {.in = shape_[2],
                          .out = shape_[2],
                          .kernel = pool.kernel,
                          .stride = pool.step(),
                          .padding = pool.padding});
    layers.add(std::make_unique<PoolLayer>(pooling, pool.form == PoolForm::max));
    return 1;
  }

  std::size_t add(const Upsample& upsample, const Placed& placed, const List& /*list*/,
                  std::size_t /*i*/, Layers& layers) {
    require_image(placed);
    layers.add(std::make_unique<UpsampleLayer>(upsample.factor));
    shape_ = {upsample.factor * shape_[0], upsample.factor * shape_[1], shape_[2]};
    enlargement_ = std::min(enlargement_ * upsample.factor, max_elements);
    return 1;
  }

  std::size_t add(const Linear& linear, const Placed& placed, const List& list, std::size_t i,
                  Layers& layers) {
    const std::int64_t in = shape_.back();
    layers.add(std::make_unique<RowsLinearLayer>(
        placed.name, in, linear.width,
        start_of(linear.init, list, i, static_cast<double>(in), static_cast<double>(linear.width)),
        linear.bias));
    shape_[shape_.rank() - 1] = linear.width;
    return 1;
  }

  std::size_t add(const Flatten& /*flatten*/, const Placed& placed, const List& /*list*/,
                  std::size_t /*i*/, Layers& layers) {
    require(placed, shape_.rank() > 1, "pixels or tokens", "remove it");
    const std::int64_t elements = shape_.elements();
    layers.add(std::make_unique<FlattenLayer>(shape_, elements));
    shape_ = {elements};
    return 1;
  }

  std::size_t add(const Dropout& dropout, const Placed& placed, const List& /*list*/,
                  std::size_t /*i*/, Layers& layers) {
    layers.add(std::make_unique<DropoutLayer>(placed.name, dropout.rate));
    return 1;
  }

  std::size_t add(const Patches& patches, const Placed& placed, const List& list, std::size_t i,
                  Layers& layers) {
    require_image(placed);
    const std::int64_t patch = patches.patch;
    if (shape_[0] % patch != 0 || shape_[1] % patch != 0)
      throw InputError(fmt::format(
          "model.blocks: {}: patch = {} does not divide the {} x {} pixels of {}; use patch = {}",
          placed.in_words(), patch, shape_[0], shape_[1], before_,
          nearest_divisors(patch, std::gcd(shape_[0], shape_[1]))));
    const ops::PatchRows rows{
        .height = shape_[0], .width = shape_[1], .channels = shape_[2], .patch = patch};
    grid_ = {0, rows.grid_height(), rows.grid_width()};
    layers.add(std::make_unique<PatchesLayer>(
        placed.name, rows, patches.width,
        start_of(patches.init, list, i, static_cast<double>(rows.row_elements()),
                 static_cast<double>(patches.width))));
    shape_ = {grid_.positions(), patches.width};
    return 1;
  }

  std::size_t add(const Positions& positions, const Placed& placed, const List& list, std::size_t i,
                  Layers& layers) {
    require_tokens(placed);
    // Behind a transpose the tokens are no grid.
    const parallel::PositionGrid grid =
        grid_.positions() == shape_[0] ? grid_ : parallel::PositionGrid{0, 1, shape_[0]};
    const Initializer start =
        positions.init ? start_of(positions.init, list, i, static_cast<double>(shape_[1]),
                                  static_cast<double>(shape_[1]))
                       : Initializer{Initializer::Kind::normal, attention_deviation};
    layers.add(std::make_unique<PositionsLayer>(placed.name, grid, shape_[1], start));
    return 1;
  }

  std::size_t add(const Attention& attention, const Placed& placed, const List& list, std::size_t i,
                  Layers& layers) {
    require_tokens(placed);
    const std::int64_t width = shape_[1], heads = attention.heads;
    if (width % heads != 0)
      throw InputError(
          fmt::format("model.blocks: {}: heads = {} does not divide the {} channels of {}; use {}",
                      placed.in_words(), heads, width, before_, nearest_divisors(heads, width)));
    layers.add(std::make_unique<AttentionLayer>(
        placed.name, shape_[0], width, heads,
        start_of(attention.init, list, i, static_cast<double>(width), static_cast<double>(width))));
    return 1;
  }

  std::size_t add(const Transpose& /*transpose*/, const Placed& placed, const List& /*list*/,
                  std::size_t /*i*/, Layers& layers) {
    require_tokens(placed);
    layers.add(std::make_unique<TransposeLayer>());
    shape_ = {shape_[1], shape_[0]};
    return 1;
  }

  List list_;
  bool has_attention_;
  std::int64_t batch_;
  Shape shape_;         ///< of one sample, behind the last layer
  std::string before_;  ///< what gives it, in words
  /// Pixels of the input, or of the innermost body's, in a step of the pixels that are reached.
  std::int64_t stride_ = 1;
  std::int64_t enlargement_ = 1;  ///< rows that upsampling makes of one
  parallel::PositionGrid grid_;
};

/// Returns the groups of layers, the last of which gives these outputs; count 0: any.
std::vector<Group> groups_of(const std::vector<Entry>& list, const Shape& input,
                             const AnswerExtents& outputs) {
  TRIREME_EXPECT(!list.empty() && input.rank() == 4);
  Builder builder(list, input[0], {input[1], input[2], input[3]});
  std::vector<Group> groups = builder.groups();
  const Shape output = groups.back().output;
  if (outputs.count == 0 && output.rank() == 3) return groups;
  if (outputs.is_map()) {
    const Shape wanted{outputs.height, outputs.width, outputs.count};
    validate(output == wanted,
             "model.blocks: the last block must give {}, an answer for each pixel of the target, "
             "but it is {}; use strides, pools and upsample blocks that undo each other, and end "
             "with a conv of {} channels",
             to_string(wanted), builder.before(), outputs.count);
    return groups;
  }
  validate(output.rank() == 1,
           "model.blocks: the last block must give one number for each class, but it is {}; end "
           "with pool = \"global\" or flatten, and linear",
           builder.before());
  validate(
      outputs.count == 0 || output[0] == outputs.count,
      "model.blocks: the last block is {}, but the data has {} classes or values; let it give [{}]",
      builder.before(), outputs.count, outputs.count);
  return groups;
}

}  // namespace

Shape output_shape(const std::vector<Entry>& list, const Shape& input) {
  return groups_of(list, input, {}).back().output;
}

ModelParts make_network(const std::vector<Entry>& list, const Shape& input,
                        const AnswerExtents& outputs) {
  std::vector<Group> groups = groups_of(list, input, outputs);
  ModelParts parts;
  for (std::size_t i = 0; i + 1 < groups.size(); ++i)
    parts.blocks.push_back(std::make_unique<ChainBlock>(std::move(groups[i]), i == 0));
  parts.head = std::make_unique<ChainHead>(std::move(groups.back()), groups.size() == 1);
  return parts;
}

}  // namespace trireme::model::chain
