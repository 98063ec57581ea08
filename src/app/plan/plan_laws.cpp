// SPDX-License-Identifier: Apache-2.0
//
// `trireme plan` without a deck: scaling laws, for somebody who has a size or a budget only.
//
// plan_by_laws(): read the numbers (read_request), then one function for each line of the report.
#include "plan_laws.hpp"

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "app/output_file.hpp"
#include "app/report_line.hpp"
#include "plan_report.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/plan/laws.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;
using Line = ReportLine;

/// The part of the peak without --rate and --mfu: published runs of large models reach 0.35 to 0.5.
constexpr double default_mfu = 0.4;

constexpr std::string_view prefixes = "kMGTPEZY";

/// Returns 1e3 for k, 1e9 for G or B ...; 1 for no suffix; 0 for another one.
double factor_of(std::string_view suffix) {
  if (suffix.empty()) return 1;
  if (suffix.size() > 1) return 0;
  if (suffix == "K") suffix = "k";
  if (suffix == "B") suffix = "G";
  const std::size_t step = prefixes.find(suffix.front());
  return step == std::string_view::npos ? 0 : std::pow(10.0, 3.0 * static_cast<double>(step + 1));
}

/// Reads "7B", "1.5T" or "1e21"; none if the option was not given.
std::optional<double> read_count(const char* option, const std::string& word) {
  if (word.empty()) return std::nullopt;
  double number = 0;
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, number);
  const std::string_view suffix(stopped, static_cast<std::size_t>(end - stopped));
  const double value = error == std::errc() ? number * factor_of(suffix) : 0;
  // Far beyond every machine, and its square can still be computed with.
  constexpr double max_count = 1e36;
  validate(value > 0 && value <= max_count,
           "{} = {}: must be a number above 0 and at most 1e36, alone or with k, M, B (or G), T, "
           "P, E, Z or Y, as in "
           "7B, 1.5T or 1e21",
           option, printable(word, 80));
  return value;
}

/// Returns "7 B" or "1.5 T": numbers of parameters and tokens.
std::string count_text(double count) {
  static constexpr const char* units[] = {"", " k", " M", " B", " T"};
  std::size_t step = 0;
  for (; count >= 999.95 && step + 1 < std::size(units); ++step) count /= 1000;
  return fmt::format("{:.4g}{}", count, units[step]);
}

struct Request {
  std::optional<double> parameters, tokens;
  std::optional<plan::Machine> machine;
  std::optional<double> rate;  // FLOP/s of a GPU
  std::string rate_text;
  std::optional<double> flops;  // of the model, or the budget
  bool is_budget = false;
  double gpu_hour_usd = 0;  // 0: not known
  int ranks = 0;
};

/// Returns the dense peak of the type that models are trained in.
double peak_of(const plan::Machine& machine) {
  return machine.peak.bfloat16 > 0 ? machine.peak.bfloat16 : machine.peak.float32;
}

void read_rate(const LawArguments& arguments, Request& request) {
  validate(arguments.rate.empty() || arguments.mfu.empty(),
           "--rate and --mfu exclude each other: both say how fast a GPU computes");
  if (const std::optional<double> rate = read_count("--rate", arguments.rate)) {
    request.rate = rate;
    request.rate_text = fmt::format("{:.4g} TFLOP/s", *rate / 1e12);
    return;
  }
  const std::optional<double> mfu = read_count("--mfu", arguments.mfu);
  validate(!mfu || *mfu <= 1, "--mfu = {}: must be a part of the peak, above 0 and at most 1",
           arguments.mfu);
  validate(!mfu || request.machine, "--mfu: needs --machine, whose peak it is a part of");
  if (!request.machine) return;
  const double part = mfu.value_or(default_mfu);
  request.rate = part * peak_of(*request.machine);
  request.rate_text =
      fmt::format("{:.4g} TFLOP/s ({:.3g} % of the peak of {}{})", *request.rate / 1e12, 100 * part,
                  request.machine->name, mfu ? "" : ", assumed: see --mfu and --rate");
}

Request read_request(const LawArguments& arguments, const std::optional<plan::Machine>& machine,
                     double price, int ranks) {
  Request request;
  request.parameters = read_count("--model-size", arguments.model_size);
  request.tokens = read_count("--tokens", arguments.tokens);
  request.ranks = ranks;
  request.machine = machine;
  request.gpu_hour_usd = price > 0 ? price : machine ? machine->price.gpu_hour_usd : 0;
  read_rate(arguments, request);
  const std::optional<double> budget = read_count("--budget", arguments.budget);
  const std::optional<double> hours = read_count("--gpu-hours", arguments.gpu_hours);
  validate(!budget || !hours, "--budget and --gpu-hours exclude each other: both are the budget");
  validate(!hours || request.rate,
           "--gpu-hours: needs --machine, or --rate with the FLOP/s of a GPU, as in --rate 300T");
  request.is_budget = budget || hours;
  if (request.is_budget) {
    validate(!request.parameters || !request.tokens,
             "--model-size and --tokens make 6 N D = {:.4g} FLOP, so there is no budget to choose; "
             "leave one of them or {} out",
             request.parameters && request.tokens
                 ? plan::training_flops({*request.parameters, *request.tokens})
                 : 0,
             budget ? "--budget" : "--gpu-hours");
    request.flops = budget ? *budget : *hours * 3600 * *request.rate;
    // The budget and one of both sizes give the other.
    if (request.parameters)
      request.tokens = *request.flops / (6 * *request.parameters);
    else if (request.tokens)
      request.parameters = *request.flops / (6 * *request.tokens);
  } else {
    validate(request.parameters.has_value(),
             "plan without a deck needs --model-size N, or a budget: --budget FLOP or --gpu-hours "
             "HOURS");
    if (request.tokens)
      request.flops = plan::training_flops({*request.parameters, *request.tokens});
  }
  validate(request.ranks == 0 || request.rate,
           "--ranks: needs --machine, or --rate with the FLOP/s of a GPU, as in --rate 300T");
  validate(price == 0 || (request.flops && request.rate),
           "--price: needs GPU-hours: give --machine or --rate, and a budget or both --model-size "
           "and --tokens");
  return request;
}

Line model_line(const Request& request) {
  std::string text = fmt::format("N = {} parameters", count_text(*request.parameters));
  if (request.tokens)
    text += fmt::format(", D = {} tokens, {:.3g} a parameter", count_text(*request.tokens),
                        *request.tokens / *request.parameters);
  return {"model",
          text,
          {{"parameters", *request.parameters},
           {"tokens", request.tokens ? Json(*request.tokens) : Json()}}};
}

Line flops_line(const Request& request) {
  const double days = plan::petaflop_days(*request.flops);
  return {request.is_budget ? "budget" : "compute",
          fmt::format("{}{:.4g} FLOP, {:.4g} PF-days; 6 N D (Kaplan et al. 2020): attention and "
                      "recomputation are not in it",
                      request.is_budget ? "C = " : "", *request.flops, days),
          {{"flops", *request.flops}, {"pf_days", days}}};
}

Line time_line(const Request& request) {
  const double hours = plan::gpu_hours(*request.flops, *request.rate);
  std::string text = fmt::format("{:.0f} GPU-hours at {}", hours, request.rate_text);
  Json numbers{{"gpu_hours", hours}, {"flops_per_s_per_gpu", *request.rate}};
  if (request.ranks > 0) {
    const double days = hours / request.ranks / 24;
    text += fmt::format(", {:.4g} days on {}", days, counted(request.ranks, "GPU", "GPUs"));
    numbers["gpus"] = request.ranks;
    numbers["days"] = days;
  }
  std::optional<double> usd;
  if (request.gpu_hour_usd > 0) usd = hours * request.gpu_hour_usd;
  text += cost_text(usd);
  if (usd) numbers["cost_usd"] = *usd;
  return {"time", text, numbers};
}

Json sizes_json(const plan::ModelAndData& sizes) {
  return {{"parameters", sizes.parameters},
          {"tokens", sizes.tokens},
          {"tokens_per_parameter", sizes.tokens_per_parameter()},
          {"flops", plan::training_flops(sizes)}};
}

/// The two forms of compute-optimal sizes, which differ.
std::vector<Line> optimal_lines(const Request& request) {
  const plan::ModelAndData rule = plan::compute_optimal(*request.flops),
                           form = plan::quoted_square_root_form(*request.flops);
  const auto sizes = [](const plan::ModelAndData& both) {
    return fmt::format("{} parameters, {} tokens", count_text(both.parameters),
                       count_text(both.tokens));
  };
  return {
      {"optimal",
       fmt::format("{}: 20 tokens a parameter, N = 0.091 sqrt(C), D = 1.83 sqrt(C) (Hoffmann et "
                   "al. 2022)",
                   sizes(rule)),
       sizes_json(rule)},
      {"other",
       fmt::format("{}: 2 tokens a parameter, N = 0.7 sqrt(C), D = 1.4 sqrt(C), often quoted; it "
                   "differs from the rule above, and its 6 N D is {:.3g} C: plan with the rule",
                   sizes(form), plan::training_flops(form) / *request.flops),
       sizes_json(form)}};
}

/// Bytes of the state, on each GPU of data-parallel replicas and with full sharding.
std::vector<Line> memory_lines(const Request& request) {
  const plan::StateBytes state;
  const double whole = *request.parameters * state.replicated(),
               shared = *request.parameters * state.sharded();
  std::vector<Line> lines{
      {"state",
       fmt::format("{} bytes a parameter with AdamW in bfloat16: working weights {}, master "
                   "weights {}, gradient {}, optimizer {}; {} without activations",
                   state.replicated(), state.working_weights, state.master_weights, state.gradient,
                   state.optimizer, format_bytes(whole)),
       {{"bytes_per_parameter", state.replicated()}, {"bytes", whole}}}};
  if (!request.machine) return lines;
  const auto device =
      static_cast<double>(request.machine->memory.bytes - request.machine->overhead.reserved_bytes);
  const bool fits = whole <= device;
  lines.push_back({"ddp",
                   fmt::format("every GPU holds {}: {} into {} of a GPU{}", format_bytes(whole),
                               fits ? "fits" : "does NOT fit", format_bytes(device),
                               fits ? ", so 1 GPU is enough" : ", at any number of GPUs"),
                   {{"bytes", whole}, {"fits", fits}, {"gpus", fits ? Json(1) : Json()}}});
  const std::int64_t all = plan::gpus_for(shared, device),
                     half = plan::gpus_for(shared, device / 2);
  lines.push_back(
      {"sharded",
       fmt::format("the GPUs share {} bytes a parameter, {} (parallel.shard = \"parameters\"): {} "
                   "hold it, {} leave half of their memory for activations; each holds two whole "
                   "blocks besides",
                   state.sharded(), format_bytes(shared), counted(all, "GPU", "GPUs"), half),
       {{"bytes_per_parameter", state.sharded()},
        {"bytes", shared},
        {"gpus", all},
        {"gpus_with_half_free", half}}});
  return lines;
}

std::vector<Line> describe(const Request& request) {
  std::vector<Line> lines;
  const auto append = [&](std::vector<Line> more) {
    lines.insert(lines.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  if (request.flops && request.is_budget) lines.push_back(flops_line(request));
  if (request.parameters) lines.push_back(model_line(request));
  if (request.flops && !request.is_budget) lines.push_back(flops_line(request));
  if (request.flops && request.rate) lines.push_back(time_line(request));
  if (request.flops) append(optimal_lines(request));
  if (request.parameters) append(memory_lines(request));
  return lines;
}

}  // namespace

bool LawArguments::any() const {
  return !model_size.empty() || !tokens.empty() || !budget.empty() || !gpu_hours.empty() ||
         !rate.empty() || !mfu.empty();
}

void add_law_options(Command& command, LawArguments& arguments) {
  command
      .option("--model-size", arguments.model_size,
              "Without a deck: parameters of the model, as 7B; memory of its state, and with "
              "--tokens the cost of training")
      .type_name("N");
  command.option("--tokens", arguments.tokens, "Without a deck: tokens of training, as 1.5T")
      .type_name("D");
  command
      .option("--budget", arguments.budget,
              "Without a deck: FLOPs of training, as 1e21; model and data that use them best")
      .type_name("FLOP");
  command
      .option("--gpu-hours", arguments.gpu_hours,
              "Without a deck: the budget in hours of one GPU, with --machine or --rate")
      .type_name("HOURS");
  command
      .option("--rate", arguments.rate,
              "Without a deck: FLOP/s that a GPU reaches, as 300T (default: 40 % of the bfloat16 "
              "peak of the machine)")
      .type_name("FLOP/s");
  command.option("--mfu", arguments.mfu, "Without a deck: the same as a part of the peak, as 0.4")
      .type_name("PART");
}

void plan_by_laws(const LawArguments& arguments, const std::optional<plan::Machine>& machine,
                  double price, int ranks, const std::string& json) {
  const std::vector<Line> lines = describe(read_request(arguments, machine, price, ranks));
  if (json.empty()) {
    for (const Line& line : lines) fmt::print("{:<11}{}\n", line.name, line.text);
    return;
  }
  Json object;
  for (const Line& line : lines) {
    object[line.name] = {{"text", line.text}};
    object[line.name].update(line.numbers);
  }
  write_output(json, object.dump(2) + "\n");
}

}  // namespace trireme::app
