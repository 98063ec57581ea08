// SPDX-License-Identifier: Apache-2.0
//
// `trireme train`: parses the deck and the restart policy, selects the device and runs
// train::train() on all ranks. The training loop is in src/train/run/training_loop.cpp.
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "app/plan/run_prediction.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/run/range_test.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/trainer.hpp"

namespace trireme::app {
namespace {

struct TrainOptions {
  DeckSource deck;
  std::string restart = "auto";
  bool weights_only = false, allow_faults = false;
  std::vector<std::string> skip;
  std::optional<std::string> range_test;  // the value of --range-test
};

// Only builds with contracts (tests) accept debug.fault and debug.device without --allow-faults.
#if defined(TRIREME_CONTRACTS)
constexpr bool test_build = true;
#else
constexpr bool test_build = false;
#endif

/// Returns the policy for the value of --restart.
train::RestartPolicy restart_policy(const TrainOptions& options) {
  using Kind = train::RestartPolicy::Kind;
  if (options.restart == "auto") return {};
  if (options.restart == "required")
    return {.kind = Kind::required, .path = {}, .weights_only = false};
  if (options.restart == "none") return {.kind = Kind::none, .path = {}, .weights_only = false};
  return {.kind = Kind::path,
          .path = options.restart,
          .weights_only = options.weights_only,
          .skip = options.skip};
}

/// Reads LOW:HIGH:STEPS.
train::RateRange rate_range(const std::string& text) {
  train::RateRange range;
  const char *at = text.data(), *const end = at + text.size();
  // Reads one number and the separator after it.
  const auto read = [&](auto& value, const char* separator) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    if (error != std::errc{} || (at == end) != (*separator == '\0')) return false;
    return at == end || *at++ == *separator;
  };
  constexpr std::int64_t min_steps = 3, max_steps = 1'000'000;
  constexpr double min_rate = 1e-30, max_rate = 1e30;
  const bool right = read(range.low, ":") && read(range.high, ":") && read(range.steps, "") &&
                     range.low >= min_rate && range.high > range.low && range.high <= max_rate &&
                     range.steps >= min_steps && range.steps <= max_steps;
  validate(
      right,
      "--range-test {}: must be LOW:HIGH:STEPS, two rates from {} to {} in increasing order and "
      "{} to {} steps, as in 1e-5:10:200",
      text, min_rate, max_rate, min_steps, max_steps);
  return range;
}

/// Returns the deck that is trained: that of the command line, or that of its range test.
deck::Deck deck_to_train(const TrainOptions& options, const comm::Communicator& world) {
  const deck::Deck deck = read_deck(options.deck, world);
  return options.range_test ? train::range_test_deck(deck) : deck;
}

ExitCode train_command(const TrainOptions& options, const std::string& command) {
  const train::TimeAccount account;
  enter_phase("mpi");
  comm::Environment environment;
  enter_phase("inputs");
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] {
    const train::RestartPolicy policy = restart_policy(options);
    validate(!options.weights_only || policy.kind == train::RestartPolicy::Kind::path,
             "--weights-only goes with --restart PATH");
    validate(options.skip.empty() || options.weights_only,
             "--skip goes with --restart PATH --weights-only; a restart with optimizer state takes "
             "every tensor");
    std::optional<train::RateRange> range;
    if (options.range_test) {
      range = rate_range(*options.range_test);
      validate(
          policy.kind == train::RestartPolicy::Kind::automatic || policy.weights_only,
          "--range-test begins with initial weights; leave --restart out, or take weights with "
          "--restart PATH --weights-only");
    }
    const deck::Deck deck = deck_to_train(options, environment.world());
    if (!deck.debug.faults.empty() && !test_build && !options.allow_faults)
      throw InputError(
          deck::with_location(deck,
                              "debug.fault kills or disturbs ranks on purpose, for tests; "
                              "take the key out, or allow it with --allow-faults"));
    if (deck.debug.device != deck::DebugDevice::automatic && !test_build && !options.allow_faults)
      throw InputError(
          deck::with_location(deck,
                              "debug.device puts the host in the place of a device, for "
                              "tests; take the key out, or allow it with --allow-faults"));
    // World rank 0 records and predicts; a wrong machine is an error of all ranks.
    std::optional<plan::Machine> machine;
    with_deck_locations(deck, [&] {
      comm::together(environment.world(), [&] {
        if (environment.world().rank() == 0) machine = read_machine_of(deck);
      });
    });
    enter_phase("allocate");
    // The engine starts before Kokkos, so that its thread may run on all cores of this rank.
    comm::Engine engine(train::choose_progress_mode(environment));
    std::optional<KokkosScope> kokkos;
    comm::together(environment.world(), [&] {
      kokkos.emplace(0, train::choose_device(deck, environment.local_rank()));
    });
    train::TrainRequest request{deck, policy, command};
    request.account = &account;
    if (machine) request.predictor = make_predictor(*std::move(machine), options.deck.path, log);
    return with_deck_locations(deck, [&] {
      return range ? train::test_rates(request, *range, environment, engine, log)
                   : train::train(request, environment, engine, log);
    });
  });
}

}  // namespace

void add_train(CommandLine& line) {
  Command command =
      line.add("train", "Train as a deck describes; under mpirun or srun every rank runs this");
  const auto options = std::make_shared<TrainOptions>();
  add_deck_options(command, options->deck);
  command
      .option("--restart", options->restart,
              "auto: resume from the newest valid checkpoint, start fresh only in a folder that "
              "holds none; required: never start fresh; "
              "none: start a new run and archive old checkpoints; PATH: resume from this file")
      .type_name("auto|required|none|PATH")
      .default_shown();
  command.flag(
      "--weights-only", options->weights_only,
      "With --restart PATH: take weights and running statistics only, and begin at step 0");
  command
      .option("--skip", options->skip,
              "With --weights-only: give tensors of these names initial values instead, as in "
              "--skip 'head.*'; may be repeated")
      .type_name("PATTERN")
      .one_value_each();
  command
      .option(
          "--range-test", [options](const std::string& value) { options->range_test = value; },
          "Instead of training, raise the learning rate from LOW to HIGH over STEPS steps, and "
          "suggest one; writes to the folder range-test of the run")
      .type_name("LOW:HIGH:STEPS");
  command.flag(
      "--allow-faults", options->allow_faults,
      "For tests: let the faults of the deck's debug.fault happen, and let debug.device choose");
  command.footer(
      "Example:\n  mpirun -n 4 trireme train inputs/examples/fashion_resnet.toml --set "
      "run.name=trial --set schedule.rate=0.1");
  command.set_action([options, &line] { return train_command(*options, line.text()); });
}

}  // namespace trireme::app
