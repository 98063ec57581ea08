// SPDX-License-Identifier: Apache-2.0
//
// The heads of a vision transformer: class token or mean of the patches, norm, linear classifier;
// or for maps the norm of all rows, and a linear layer that gives the pixels of each patch.
//
//   sample  forward   gather all rows -> pool -> norm -> linear
//           backward  linear -> norm -> pool -> the rows that this rank holds
//   map     forward   norm -> linear -> gather all rows -> patches back to pixels
//           backward  pixels to patches -> the rows that this rank holds -> linear -> norm
//
// Every rank of a tensor group has the whole head and computes the same bits. Only for a map, whose
// product has all rows, each rank multiplies those that it holds.
#include <utility>

#include "model/layers.hpp"
#include "model/parallel_layers.hpp"
#include "parts.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/pooling.hpp"

namespace trireme::model {
namespace {

using parallel::Initializer;

LinearLayer::Start start_of(const VitOptions& options) {
  return {options.zero_init_head ? Initializer{Initializer::Kind::constant, 0}
                                 : Initializer{Initializer::Kind::normal, vit_deviation},
          {Initializer::Kind::constant, 0}};
}

/// Copies the rows of `whole` that this rank holds to `held`, if it does not hold all of them.
/// `width`: that of the model.
void keep_held_rows(MicroBatchPass& pass, std::int64_t width, const Tensor& whole,
                    const Tensor& held) {
  const parallel::TensorGroup& group = pass.tensor();
  if (!group.rows_are_split()) return;
  const auto copy = [&](const parallel::RowChunk& piece) {
    const std::int64_t rows = piece.held_end - piece.held_begin;
    ops::copy(pass.context(), whole.rows(piece.first_held, piece.first_held + rows),
              held.rows(piece.held_begin, piece.held_end));
  };
  for_each_held_chunk(group, held, copy, width);
}

class VitHead final : public ClassifierHead {
 public:
  VitHead(const VitOptions& options, std::int64_t rows, std::int64_t classes)
      : ClassifierHead(rows),
        pool_(options.pool),
        rows_(rows),
        width_(options.width),
        norm_(pool_ == VitPool::token ? "norm" : "fc_norm",
              {.width = width_, .epsilon = vit_norm_epsilon, .rows_are_held = false}),
        linear_("head", width_, classes, start_of(options)) {}
  std::string name() const override { return "head"; }
  void declare(parallel::ParameterList& list) override {
    norm_.declare(list);
    linear_.declare(list);
  }

 private:
  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    const std::int64_t samples = group_row_count(pass.tensor(), x) / rows_;
    const Tensor pooled = pass.activation(x.dtype, {samples, width_});
    {
      const ArenaScope scope(pass.context().workspace());
      const Tensor whole = gather_rows(pass, x);
      if (pool_ == VitPool::mean)
        ops::average_pool_forward(pass.context(), samples, rows_, width_,
                                  whole.reshaped({samples, rows_, width_}), pooled);
      else  // Of the rows of a sample, side by side, the first one is kept.
        ops::change_channels(pass.context(), whole.reshaped({samples, rows_ * width_}), pooled,
                             ops::Write::assign);
    }
    pass.push_saved(x);
    return linear_.forward(pass, norm_.forward(pass, pooled));
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dlogits) override {
    ops::Context& context = pass.context();
    const parallel::TensorGroup& group = pass.tensor();
    const Tensor dpooled = linear_.backward(pass, dlogits);
    norm_.backward(pass, dpooled, {}, dpooled);
    const Tensor x = pass.pop_saved(), dx = pass.gradient(x.dtype, x.shape);
    const std::int64_t samples = dpooled.shape[0];
    const ArenaScope scope(context.workspace());
    const Tensor dwhole = group.rows_are_split()
                              ? context.workspace().allocate(x.dtype, {samples * rows_, width_})
                              : dx;
    if (pool_ == VitPool::mean)
      ops::average_pool_backward(context, samples, rows_, width_, dpooled,
                                 dwhole.reshaped({samples, rows_, width_}));
    else
      ops::change_channels(context, dpooled, dwhole.reshaped({samples, rows_ * width_}),
                           ops::Write::assign);
    keep_held_rows(pass, width_, dwhole, dx);
    return dx;
  }

  VitPool pool_;
  std::int64_t rows_, width_;
  RowNormLayer norm_;
  LinearLayer linear_;
};

/// Each row is a patch of the map; those in front of the patches are no part of it.
class VitMapHead final : public ClassifierHead {
 public:
  VitMapHead(const VitOptions& options, const ops::PatchRows& outputs)
      : ClassifierHead(outputs.rows_of_sample()),
        outputs_(outputs),
        width_(options.width),
        norm_("norm", {.width = width_, .epsilon = vit_norm_epsilon}),
        linear_("head", width_, outputs.row_elements(), start_of(options),
                LinearLayer::Rows::held) {}
  std::string name() const override { return "head"; }
  void declare(parallel::ParameterList& list) override {
    norm_.declare(list);
    linear_.declare(list);
  }

 private:
  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    Arena& workspace = pass.context().workspace();
    const Tensor normed = norm_.forward(pass, x);
    const std::int64_t samples = group_row_count(pass.tensor(), x) / outputs_.rows_of_sample();
    const Tensor map =
        pass.activation(x.dtype, {samples, outputs_.height, outputs_.width, outputs_.channels});
    const ArenaScope scope(workspace);
    const Tensor patches = workspace.allocate(x.dtype, {x.shape[0], outputs_.row_elements()});
    linear_.forward(pass, normed, patches);
    ops::scatter_patches(pass.context(), outputs_, gather_rows(pass, patches, width_), map);
    return map;
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dmap) override {
    ops::Context& context = pass.context();
    const parallel::TensorGroup& group = pass.tensor();
    const std::int64_t rows = dmap.shape[0] * outputs_.rows_of_sample(),
                       held = group.rows_are_split() ? rows / group.size() : rows;
    const ArenaScope scope(context.workspace());
    const Tensor all = context.workspace().allocate(dmap.dtype, {rows, outputs_.row_elements()});
    ops::gather_patches(context, outputs_, dmap, 0, all);
    const Tensor dpatches =
        held == rows ? all
                     : context.workspace().allocate(dmap.dtype, {held, outputs_.row_elements()});
    keep_held_rows(pass, width_, all, dpatches);
    const Tensor dx = linear_.backward(pass, dpatches);
    norm_.backward(pass, dx, {}, dx);
    return dx;
  }

  ops::PatchRows outputs_;
  std::int64_t width_;
  RowNormLayer norm_;
  LinearLayer linear_;
};

}  // namespace

std::unique_ptr<Head> make_vit_map_head(const VitOptions& options, const ops::PatchRows& outputs) {
  return std::make_unique<VitMapHead>(options, outputs);
}

std::unique_ptr<Head> make_vit_head(const VitOptions& options, std::int64_t rows,
                                    std::int64_t classes) {
  return std::make_unique<VitHead>(options, rows, classes);
}

}  // namespace trireme::model
