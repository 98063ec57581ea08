// SPDX-License-Identifier: Apache-2.0
//
// The head of a vision transformer: class token or mean of the patches, norm, linear classifier.
//
//   forward   gather all rows -> pool -> norm -> linear
//   backward  linear -> norm -> pool -> the rows that this rank holds
//
// Every rank of a tensor group has the whole head and computes the same bits.
#include <utility>

#include "model/layers.hpp"
#include "model/parallel_layers.hpp"
#include "parts.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/pooling.hpp"

namespace trireme::model {
namespace {

using parallel::Initializer;

class VitHead final : public ClassifierHead {
 public:
  VitHead(const VitOptions& options, std::int64_t rows, std::int64_t classes)
      : ClassifierHead(rows),
        pool_(options.pool),
        rows_(rows),
        width_(options.width),
        norm_(pool_ == VitPool::token ? "norm" : "fc_norm",
              {.width = width_, .epsilon = vit_norm_epsilon, .rows_are_held = false}),
        linear_("head", width_, classes,
                LinearLayer::Start{options.zero_init_head
                                       ? Initializer{Initializer::Kind::constant, 0}
                                       : Initializer{Initializer::Kind::normal, vit_deviation},
                                   {Initializer::Kind::constant, 0}}) {}
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
    if (group.rows_are_split())
      for_each_held_chunk(group, dx, [&](const parallel::RowChunk& piece) {
        const std::int64_t held = piece.held_end - piece.held_begin;
        ops::copy(context, dwhole.rows(piece.first_held, piece.first_held + held),
                  dx.rows(piece.held_begin, piece.held_end));
      });
    return dx;
  }

  VitPool pool_;
  std::int64_t rows_, width_;
  RowNormLayer norm_;
  LinearLayer linear_;
};

}  // namespace

std::unique_ptr<Head> make_vit_head(const VitOptions& options, std::int64_t rows,
                                    std::int64_t classes) {
  return std::make_unique<VitHead>(options, rows, classes);
}

}  // namespace trireme::model
