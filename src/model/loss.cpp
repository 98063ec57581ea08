// SPDX-License-Identifier: Apache-2.0
//
// The losses of models whose head has a row for each sample, and the table [loss].
#include "trireme/model/loss.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"
#include "trireme/model/head.hpp"
#include "trireme/model/keys.hpp"
#include "trireme/ops/loss.hpp"
#include "trireme/ops/value_loss.hpp"

namespace trireme::model {

using namespace keys;

namespace {

void compute_cross_entropy(ops::Context& context, const Tensor& outputs, const Tensor& targets,
                           const LossSettings& settings, const Tensor& sums,
                           const Tensor& doutputs) {
  ops::cross_entropy(
      context, outputs,
      {targets, settings.label_smoothing, settings.label_weights, settings.class_weights},
      settings.gradient_scale, sums, doutputs);
}

template <ops::ValueLossForm form>
void compute_value_loss(ops::Context& context, const Tensor& outputs, const Tensor& targets,
                        const LossSettings& settings, const Tensor& sums, const Tensor& doutputs) {
  ops::value_loss(context, outputs, {targets, settings.label_weights}, form, settings.delta,
                  settings.gradient_scale, sums, doutputs);
}

// As many as a target of pixels can have classes.
constexpr std::size_t max_class_weights = 1 << 16;

using ops::ValueLossForm;
constexpr AnswerKind one_class[] = {AnswerKind::one_class, AnswerKind::pixels, AnswerKind::tokens},
                     several_classes[] = {AnswerKind::classes},
                     real_numbers[] = {AnswerKind::values, AnswerKind::field};
constexpr LossKind all_losses[] = {
    {"cross-entropy", one_class, true, false, compute_cross_entropy},
    {"binary-cross-entropy", several_classes, false, false,
     compute_value_loss<ValueLossForm::logistic>},
    {"mse", real_numbers, false, false, compute_value_loss<ValueLossForm::squared>},
    {"l1", real_numbers, false, false, compute_value_loss<ValueLossForm::absolute>},
    {"huber", real_numbers, false, true, compute_value_loss<ValueLossForm::huber>}};

}  // namespace

std::span<const LossKind> losses() { return all_losses; }

bool LossKind::takes(AnswerKind answer) const {
  return std::find(answers.begin(), answers.end(), answer) != answers.end();
}

const LossKind& default_loss(AnswerKind answer) {
  const auto found = std::find_if(std::begin(all_losses), std::end(all_losses),
                                  [&](const LossKind& loss) { return loss.takes(answer); });
  TRIREME_EXPECT(found != std::end(all_losses));
  return *found;
}

void visit_keys(Visitor& v, AnswerKind answer, LossOptions& loss) {
  v.table("loss");
  std::vector<std::string> words;
  for (const LossKind& kind : losses()) words.emplace_back(kind.word);
  v.field({"kind",
           "Selects the loss: cross-entropy of a class, pixels or tokens; binary-cross-entropy of "
           "classes; mse, l1 or huber of values and fields."},
          choice_of(
              std::move(words),
              [&loss, answer] {
                return static_cast<std::size_t>(&loss_of(loss, answer) - losses().data());
              },
              [&loss](std::size_t index) { loss.kind = &losses()[index]; }));
  const LossKind& kind = loss_of(loss, answer);
  v.field({"label_smoothing",
           "Sets the share of the label's probability that is spread over all classes, from 0 to "
           "below 1.",
           {kind.has_label_smoothing, "loss.kind = \"cross-entropy\"", "loss.kind"}},
          real(loss.label_smoothing, half_open(0, 1)));
  v.field({"delta",
           "huber: sets the error from which the loss grows linearly.",
           {kind.has_delta, "loss.kind = \"huber\"", "loss.kind"}},
          real(loss.delta, above(0)));
  v.field({"class_weights",
           "Gives each class the weight with which its samples, or pixels, count in the loss of "
           "training.",
           {kind.has_label_smoothing && answer != AnswerKind::tokens,
            "loss.kind = \"cross-entropy\" of images", "loss.kind"}},
          numbers(loss.class_weights, at_least(0), max_class_weights, false));
}

}  // namespace trireme::model
