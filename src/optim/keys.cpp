// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the tables [optimizer], [schedule] and [precision.loss_scale], and the rules
// between them.
//
// Keys that belong to one kind of optimizer or schedule have the condition AppliesTo. The first two
// tables meet in the momentum: one-cycle varies it, so schedule.momentum then takes the place of
// optimizer.momentum.
#include "trireme/optim/keys.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "group_field.hpp"
#include "trireme/base/answer.hpp"

namespace trireme::optim {

using namespace keys;

namespace {

/// The texts of a key that belongs to some rules, whose words they have.
struct RuleKeyTexts {
  std::string meaning, condition;
};

/// Returns what a rule has of its own about a key, for the end of its meaning.
std::string remarks_on(std::string_view key) {
  std::string text;
  for (const UpdateRule* rule : rules()) {
    if (!rule->has_key(key)) continue;
    if (key == "momentum" && rule->default_momentum != RuleOptions().momentum)
      text += fmt::format("; default for {}: {}", rule->word, rule->default_momentum);
    if (key == "nesterov" && rule->default_nesterov)
      text += fmt::format("; default for {}: true", rule->word);
    if (rule->rule_of_others != nullptr && rule->rule_of_others->has_key(key))
      text += fmt::format("; with {} that of its {}", rule->word, rule->rule_of_others->word);
  }
  return text;
}

/// Returns the texts of all such keys.
const std::map<std::string, RuleKeyTexts>& rule_key_texts() {
  static const std::map<std::string, RuleKeyTexts> all = [] {
    std::map<std::string, RuleKeyTexts> texts;
    for (const auto& [name, meaning] : std::initializer_list<std::pair<const char*, const char*>>{
             {"momentum", "sets the momentum, from 0 to below 1"},
             {"nesterov", "uses Nesterov's form of momentum"},
             {"newton_schulz",
              "selects the type of the products that orthogonalize a matrix: bfloat16 or float32"},
             {"scale",
              "selects the factor of a matrix's rate: adamw, 0.2 sqrt(max(out, in)), or original, "
              "sqrt(max(1, out / in))"},
             {"trust_coefficient", "sets the factor of the trust ratio of each tensor"},
             {"beta1", "sets the decay of the gradient's running mean, from 0 to below 1"},
             {"beta2", "sets the decay of the squared gradient's running mean, from 0 to below 1"},
             {"epsilon", "sets the number that is added to the denominator of an update"}})
      texts[name] = {
          fmt::format("{}: {}{}.", rule_words(name, "", ", "), meaning, remarks_on(name)),
          "kind = " + rule_words(name, "\"")};
    return texts;
  }();
  return all;
}

}  // namespace

void visit_keys(Visitor& v, const ScheduleOptions& schedule, OptimizerOptions& optimizer) {
  v.table("optimizer");
  static const std::string meaning = fmt::format("Selects the optimizer: {}.", rule_words(""));
  v.field({"kind", meaning.c_str()},
          rule_choice(optimizer.rule, [](const UpdateRule&) { return true; }));
  v.field(
      {"weight_decay",
       "Sets the weight decay, which is not applied to biases and norms unless decay_all = true."},
      real(optimizer.weight_decay, at_least(0)));
  v.field({"decay_all",
           "Applies weight decay to biases and norm parameters too.",
           {optimizer.weight_decay > 0, "weight_decay > 0", "optimizer.weight_decay"}},
          flag(optimizer.decay_all));
  const auto visit = [&](const char* name, const Field& field) {
    const RuleKeyTexts& texts = rule_key_texts().at(name);
    v.field({name,
             texts.meaning.c_str(),
             {optimizer.rule->has_key(name), texts.condition.c_str(), "optimizer.kind"}},
            field);
  };
  // schedule.momentum takes its place with one-cycle. While the deck is read the schedule is not
  // known yet: a contradiction refuses the key then.
  visit("momentum", left_out_if(schedule.varies_momentum(*optimizer.rule),
                                real(optimizer.momentum, half_open(0, 1))));
  visit("nesterov", flag(optimizer.nesterov));
  visit("newton_schulz", choice<DType>(optimizer.newton_schulz, {{"bfloat16", DType::bfloat16},
                                                                 {"float32", DType::float32}}));
  visit("scale", choice<MatrixScale>(optimizer.scale, {{"adamw", MatrixScale::adamw},
                                                       {"original", MatrixScale::original}}));
  visit("trust_coefficient", real(optimizer.trust_coefficient, above(0)));
  visit("beta1", real(optimizer.beta1, half_open(0, 1)));
  visit("beta2", real(optimizer.beta2, half_open(0, 1)));
  visit("epsilon", real(optimizer.epsilon, above(0)));
  v.field({"clip_value",
           "Clips every element of the gradient to this magnitude, before clip_norm; 0 turns it "
           "off."},
          real(optimizer.clip_value, at_least(0)));
  v.field(
      {"clip_norm", "Scales gradients down to this 2-norm if theirs is larger; 0 turns it off."},
      real(optimizer.clip_norm, at_least(0)));
  v.field({"ema",
           "Sets the decay per step of the running average of the weights, which is evaluated and "
           "checkpointed; 0 turns it off."},
          real(optimizer.ema, half_open(0, 1)));
  v.field({"groups",
           "Lists groups of weights by patterns of their names, with a rate, a weight decay, trust "
           "ratios or a rule of their own, or frozen."},
          parameter_groups(optimizer.groups, *optimizer.rule));
}

namespace {

/// Visits the keys of kind = "plateau".
void visit_plateau_keys(Visitor& v, PlateauOptions& options, const AppliesTo& applies) {
  std::vector<std::pair<std::string, std::string>> metrics;
  for (const std::string& word : metric_words()) metrics.emplace_back(word, word);
  v.field({"metric", "plateau: selects the metric of data.validation that must improve.", applies},
          choice<std::string>(options.metric, std::move(metrics)));
  v.field(
      {"threshold", "plateau: sets the relative change that counts as an improvement.", applies},
      real(options.threshold, half_open(0, 1)));
  v.field({"patience",
           "plateau: sets the number of evaluations in a row without improvement that are "
           "tolerated.",
           applies},
          integer(options.patience, at_least(0)));
  v.field({"cooldown",
           "plateau: sets the number of evaluations after a reduction that do not count.", applies},
          integer(options.cooldown, at_least(0)));
}

/// Visits the keys that give the rate its course. Most belong to some kinds only.
void visit_course_keys(Visitor& v, const UpdateRule& rule, ScheduleOptions& schedule) {
  // Returns the condition that the kind is one of the given kinds.
  const auto belongs_to = [&](const char* condition, std::initializer_list<ScheduleKind> kinds) {
    const bool is_met = std::find(kinds.begin(), kinds.end(), schedule.kind) != kinds.end();
    return AppliesTo{is_met, condition, "schedule.kind"};
  };
  const AppliesTo step = belongs_to("kind = \"step\"", {ScheduleKind::step}),
                  one_cycle = belongs_to("kind = \"one-cycle\"", {ScheduleKind::one_cycle}),
                  plateau = belongs_to("kind = \"plateau\"", {ScheduleKind::plateau}),
                  restarts = belongs_to("kind = \"restarts\"", {ScheduleKind::restarts});
  v.field({"min_ratio",
           "Sets the lowest rate as a fraction of the peak rate, from 0 to 1; default for "
           "one-cycle: 4e-6.",
           belongs_to("kind = \"cosine\", \"polynomial\", \"restarts\", \"one-cycle\" or "
                      "\"plateau\"",
                      {ScheduleKind::cosine, ScheduleKind::polynomial, ScheduleKind::restarts,
                       ScheduleKind::one_cycle, ScheduleKind::plateau})},
          real(schedule.min_ratio, between(0, 1)));
  v.field({"milestones",
           "step: lists when the rate is multiplied by gamma, from the start of the run, as in "
           "[\"30 epochs\", \"60 epochs\"].",
           step},
          durations(schedule.milestones, DurationUnits::counts));
  const AppliesTo decaying = belongs_to("kind = \"step\" or \"exponential\"",
                                        {ScheduleKind::step, ScheduleKind::exponential});
  v.field(
      {"every",
       "step: replaces milestones by equal intervals; exponential: the interval in which the "
       "rate falls by gamma, default \"1 epoch\".",
       decaying},
      left_out_if(!schedule.every, optional_duration(schedule.every, DurationUnits::counts, true)));
  v.field({"gamma",
           "step: sets the factor of the rate at each milestone; exponential: that in each "
           "interval, required.",
           decaying},
          real(schedule.gamma, {.min = 0, .max = 1, .min_open = true}));
  v.field({"power", "polynomial: sets the exponent of the decay; 1 is a straight line.",
           belongs_to("kind = \"polynomial\"", {ScheduleKind::polynomial})},
          real(schedule.power, {.min = 0, .max = 100, .min_open = true}));
  v.field(
      {"period", "restarts: sets the length of the first period, as in \"10 epochs\"; required.",
       restarts, "give the length of the first period, as in period = \"10 epochs\""},
      duration(schedule.period, DurationUnits::counts, true));
  v.field({"factor",
           "restarts: sets the ratio of each period to the one before; plateau: the factor of the "
           "rate.",
           belongs_to("kind = \"restarts\" or \"plateau\"",
                      {ScheduleKind::restarts, ScheduleKind::plateau}),
           nullptr, true},
          plateau.is_met ? real(schedule.plateau.factor,
                                {.min = 0, .max = 1, .min_open = true, .max_open = true})
                         : real(schedule.period_factor, between(1, 100)));
  v.field({"peak_at", "one-cycle: sets the part of the schedule after which the peak is reached.",
           one_cycle},
          real(schedule.peak_at, {.min = 0, .max = 1, .min_open = true, .max_open = true}));
  static const RuleKeyTexts momentum{
      fmt::format("one-cycle with {}: sets the momentum at the peak and at both ends, in place of "
                  "optimizer.momentum.",
                  rule_words("momentum")),
      "kind = \"one-cycle\" with optimizer.kind = " + rule_words("momentum", "\"")};
  v.field({"momentum",
           momentum.meaning.c_str(),
           {schedule.varies_momentum(rule), momentum.condition.c_str(),
            one_cycle.is_met ? "optimizer.kind" : "schedule.kind"}},
          number_pair(schedule.momentum_range, half_open(0, 1)));
  visit_plateau_keys(v, schedule.plateau, plateau);
}

}  // namespace

void visit_keys(Visitor& v, const UpdateRule& rule, ScheduleOptions& schedule) {
  v.table("schedule");
  v.field({"kind",
           "Selects the course of the learning rate: constant, cosine, step, exponential, "
           "polynomial, restarts, one-cycle or plateau."},
          choice<ScheduleKind>(schedule.kind, {{"constant", ScheduleKind::constant},
                                               {"cosine", ScheduleKind::cosine},
                                               {"step", ScheduleKind::step},
                                               {"exponential", ScheduleKind::exponential},
                                               {"polynomial", ScheduleKind::polynomial},
                                               {"restarts", ScheduleKind::restarts},
                                               {"one-cycle", ScheduleKind::one_cycle},
                                               {"plateau", ScheduleKind::plateau}}));
  const bool one_cycle = schedule.kind == ScheduleKind::one_cycle;
  v.field({"rate",
           "Sets the peak learning rate; with scaling = linear or sqrt that of base_batch samples "
           "per step."},
          real(schedule.rate, above(0)));
  v.field({"scaling", "Selects how rate follows batch.global / base_batch: none, linear or sqrt."},
          choice<RateScaling>(schedule.scaling, {{"none", RateScaling::none},
                                                 {"linear", RateScaling::linear},
                                                 {"sqrt", RateScaling::sqrt}}));
  v.field({"base_batch",
           "Sets the global batch, in samples, for which rate is meant.",
           {schedule.scaling != RateScaling::none, "scaling = \"linear\" or \"sqrt\"",
            "schedule.scaling"}},
          integer(schedule.base_batch, at_least(1)));
  v.field({"warmup",
           "Sets the length of the linear increase of the rate, as in \"5 epochs\", or \"none\".",
           {!one_cycle, "a kind other than \"one-cycle\", which begins with an increase",
            "schedule.kind"}},
          optional_duration(schedule.warmup, DurationUnits::counts, false));
  v.field({"length",
           "Sets the length of the schedule, as in \"90 epochs\"; \"none\": that of run.stop."},
          optional_duration(schedule.length, DurationUnits::counts, true));
  v.field({"start_ratio",
           "Sets the rate at the start of a warmup or of one-cycle, as a fraction of the peak "
           "rate; default for one-cycle: 0.04.",
           {one_cycle || schedule.warmup, "a deck with warmup, or kind = \"one-cycle\"",
            one_cycle ? "schedule.kind" : "schedule.warmup"}},
          real(schedule.start_ratio, between(0, 1)));
  visit_course_keys(v, rule, schedule);
}

void visit_keys(Visitor& v, const AppliesTo& float16, LossScaleOptions& scale) {
  v.table("precision.loss_scale");
  v.field({"initial", "float16: sets the initial factor of the loss, a power of two.", float16},
          power_of_two(scale.initial,
                       between(LossScaleOptions::min_scale, LossScaleOptions::max_scale)));
  v.field(
      {"growth", "float16: sets the factor by which the loss scale grows, a power of two above 1.",
       float16},
      power_of_two(scale.growth, {.min = 1, .max = LossScaleOptions::max_scale, .min_open = true}));
  v.field(
      {"backoff", "float16: sets the factor after an overflow, a power of two below 1.", float16},
      power_of_two(scale.backoff, {.min = 0, .max = 1, .min_open = true, .max_open = true}));
  v.field({"interval",
           "float16: sets the number of applied steps after which the loss scale grows.", float16},
          integer(scale.interval, at_least(1)));
}

namespace {

/// Requires the keys of a kind of schedule that have no default, and refuses pairs of which only
/// one can have an effect.
void check_kind(const ScheduleOptions& schedule, Reader& reader) {
  if (schedule.kind == ScheduleKind::step &&
      !reader.any_wrong({"schedule.milestones", "schedule.every"})) {
    if (schedule.milestones.empty() && !schedule.every)
      reader.add_mistake("schedule.milestones",
                         "missing; kind = \"step\" needs milestones = [\"30 epochs\", \"60 "
                         "epochs\"], or every = \"30 epochs\"");
    else if (!schedule.milestones.empty() && schedule.every)
      reader.add_mistake("schedule.every",
                         fmt::format("\"{}\" replaces milestones, which are given too; use "
                                     "one of them",
                                     to_string(*schedule.every)));
  }
  if (schedule.kind == ScheduleKind::exponential) {
    if (!reader.is_set("schedule.gamma"))
      reader.add_mistake("schedule.gamma",
                         "missing; give the factor of the rate in each interval \"every\", as in "
                         "gamma = 0.97");
    if (!schedule.every && !reader.any_wrong({"schedule.every"}))
      reader.add_mistake("schedule.every",
                         "\"none\", but kind = \"exponential\" needs an interval; use \"1 epoch\"");
  }
}

/// Requires one source of the momentum, and one that Nesterov's form can use.
void check_momentum(const ScheduleOptions& schedule, const OptimizerOptions& optimizer,
                    Reader& reader) {
  if (!reader.any_wrong({"schedule.kind"}) && schedule.varies_momentum(*optimizer.rule) &&
      reader.is_set("optimizer.momentum") &&
      !reader.any_wrong({"optimizer.momentum", "optimizer.kind"}))
    reader.add_mistake("optimizer.momentum",
                       fmt::format("belongs to a schedule.kind other than \"one-cycle\", which "
                                   "varies the momentum (schedule.momentum = [{}, {}]); {}",
                                   schedule.momentum_range[0], schedule.momentum_range[1],
                                   reader.removal_advice("optimizer.momentum")));
  if (optimizer.nesterov && schedule.varies_momentum(*optimizer.rule)) {
    if (schedule.momentum_range[1] == 0 &&
        !reader.any_wrong({"schedule.momentum", "schedule.kind", "optimizer.nesterov"}))
      reader.add_mistake("optimizer.nesterov",
                         "true needs a momentum, but schedule.momentum = [0, 0]; use nesterov = "
                         "false, or momentum = [0.85, 0.95]");
  } else if (optimizer.nesterov && optimizer.momentum == 0 &&
             !reader.any_wrong({"optimizer.momentum", "optimizer.nesterov"})) {
    reader.add_mistake(
        "optimizer.nesterov",
        fmt::format(
            "true needs a momentum, but momentum = 0; use nesterov = false, or momentum = {}",
            optimizer.rule->default_momentum));
  }
}

}  // namespace

void fill_in_defaults(OptimizerOptions& optimizer, const Reader& reader) {
  if (!reader.is_set("optimizer.momentum")) optimizer.momentum = optimizer.rule->default_momentum;
  if (!reader.is_set("optimizer.nesterov")) optimizer.nesterov = optimizer.rule->default_nesterov;
}

void check_keys(const ScheduleOptions& schedule, const OptimizerOptions& optimizer,
                Reader& reader) {
  if (!reader.any_wrong({"schedule.kind"})) check_kind(schedule, reader);
  check_momentum(schedule, optimizer, reader);
}

}  // namespace trireme::optim
