#include <string>
#include <utility>

#include "trireme/model/layers.hpp"
#include "trireme/model/model.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::model {
namespace {

/// A linear layer and, but for the last, its ReLU. Takes any shape [B, ...] as [B, in].
class MlpBlock final : public Block {
 public:
  MlpBlock(std::string name, std::int64_t in, std::int64_t out, bool first, bool last)
      : name_(std::move(name)), in_(in), out_(out), first_(first), last_(last), linear_(name_, in, out) {}
  std::string name() const override { return name_; }
  void declare(parallel::ParameterList& list) override { linear_.declare(list); }
  Shape output_shape(const Shape& input) const override { return {input[0], out_}; }

  Tensor forward(Pass& pass, const Tensor& x) override {
    const Tensor y = linear_.forward(pass, x.reshaped({x.shape[0], in_}));
    if (last_) return y;
    ops::relu_forward(pass.context(), y, y);
    pass.save(y);
    return y;
  }

  Tensor backward(Pass& pass, const Tensor& dy) override {
    if (!last_) ops::relu_backward(pass.context(), pass.restore(), dy, dy);
    return linear_.backward(pass, dy, !first_);
  }

 private:
  std::string name_;
  std::int64_t in_, out_;
  bool first_, last_;
  LinearLayer linear_;
};

}  // namespace

std::vector<std::unique_ptr<Block>> make_mlp(const ModelOptions& options, const Shape& input, std::int64_t classes) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::int64_t in = input.elements() / input[0];
  for (std::size_t i = 0; i <= options.widths.size(); ++i) {
    const bool last = i == options.widths.size();
    const std::int64_t out = last ? classes : options.widths[i];
    blocks.push_back(std::make_unique<MlpBlock>("layers." + std::to_string(i), in, out, i == 0, last));
    in = out;
  }
  return blocks;
}

}  // namespace trireme::model
