// SPDX-License-Identifier: Apache-2.0
//
// The layouts that a search considers. What is valid is decided by the checks of the deck and by
// train::resolve_rows(), which are called for each choice; no rule is repeated here.

#include "layout_space.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/error.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::plan {
namespace {

using parallel::ShardKind;

const char* name_of(ShardKind kind) {
  switch (kind) {
    case ShardKind::none: return "none";
    case ShardKind::optimizer: return "optimizer";
    case ShardKind::gradients: return "gradients";
    case ShardKind::parameters: return "parameters";
  }
  return "?";
}

std::vector<std::int64_t> divisors(std::int64_t whole) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t i = 1; i * i <= whole; ++i) {
    if (whole % i != 0) continue;
    low.push_back(i);
    if (i * i != whole) high.push_back(whole / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// Counts layouts by the rule that they break. Messages of one rule differ by their numbers.
class Refusals {
 public:
  explicit Refusals(std::string file) : file_(std::move(file)) {}

  void add(const std::string& message, std::int64_t layouts) {
    const std::string reason = statement(message);
    std::string rule;
    for (const char c : reason)
      if (c < '0' || c > '9') rule += c;
    const auto [place, is_new] = by_rule_.try_emplace(rule, list_.size());
    if (is_new) list_.push_back({.reason = reason});
    list_[place->second].layouts += layouts;
  }

  std::vector<RejectedLayouts> take() {
    std::stable_sort(list_.begin(), list_.end(),
                     [](const auto& a, const auto& b) { return a.layouts > b.layouts; });
    return std::move(list_);
  }

 private:
  /// Returns the first mistake of a message, without the remedy, which is another layout.
  std::string statement(std::string message) const {
    message = message.substr(0, message.find('\n'));
    // The place in the file is that of one of the keys.
    if (message.starts_with(file_) && message.find(": [") != std::string::npos)
      message = message.substr(message.find(": [") + 2);
    constexpr std::string_view option = "--set ";
    if (message.starts_with(option)) message = message.substr(option.size());
    return message.substr(0, message.find("; "));
  }

  std::string file_;
  std::map<std::string, std::size_t> by_rule_;
  std::vector<RejectedLayouts> list_;
};

class SpaceMaker {
 public:
  explicit SpaceMaker(const SearchRequest& request) : request_(request), refusals_(request.file) {
    for (const keys::Override& given : request.overrides)
      if (given.value) fixed_.insert(given.key);
  }

  LayoutSpace make() {
    const parallel::ParallelOptions& given = request_.deck.parallel;
    validate(!is_fixed("parallel.pipeline_schedule") ||
                 given.pipeline_schedule != parallel::PipelineKind::gpipe,
             "--set parallel.pipeline_schedule=gpipe: is not searched, because 1f1b needs less "
             "memory and takes the same time; leave it out");
    space_.offload_is_fixed = is_fixed("parallel.offload");
    space_.tries_offload = request_.machine.node.host_copy_bytes_per_s > 0;
    add_shards();
    space_.recomputes = {0, 4, 2, 1};
    if (is_fixed("parallel.recompute"))
      space_.recomputes = {given.recompute};
    else if (std::ranges::find(space_.recomputes, given.recompute) == space_.recomputes.end())
      space_.recomputes.push_back(given.recompute);
    for (const int tensor : degrees(request_.ranks, "parallel.tensor", given.tensor))
      for (const int stages : degrees(request_.ranks / tensor, "parallel.pipeline", given.pipeline))
        add_mesh(tensor, stages);
    space_.refused = refusals_.take();
    return std::move(space_);
  }

 private:
  bool is_fixed(const char* key) const { return fixed_.contains(key); }

  /// Returns the divisors of `ranks`, or the one that the user has fixed.
  std::vector<int> degrees(int ranks, const char* key, int given) const {
    if (is_fixed(key)) return ranks % given == 0 ? std::vector<int>{given} : std::vector<int>{};
    std::vector<int> parts;
    for (const std::int64_t part : divisors(ranks)) parts.push_back(static_cast<int>(part));
    return parts;
  }

  /// Keeps the kinds of sharding that the deck's other keys permit.
  void add_shards() {
    const parallel::ParallelOptions& given = request_.deck.parallel;
    std::vector<ShardKind> kinds{ShardKind::none, ShardKind::optimizer, ShardKind::gradients,
                                 ShardKind::parameters};
    if (is_fixed("parallel.shard")) kinds = {given.shard};
    // No other key that is varied matters, so one stage stands for all layouts.
    LayoutChoice choice{.data = 0, .micro = request_.deck.batch.micro};
    for (const ShardKind kind : kinds) {
      choice.shard = kind;
      choice.offload = is_fixed("parallel.offload") ? given.offload : parallel::Offload{};
      try {
        deck_of(request_, choice);
        space_.shards.push_back(kind);
      } catch (const InputError& error) {
        shard_refusals_.emplace_back(error.what());
      }
    }
  }

  void add_mesh(int tensor, int stages) {
    LayoutChoice choice{
        .data = request_.ranks / (tensor * stages), .tensor = tensor, .pipeline = stages};
    const parallel::ParallelOptions& given = request_.deck.parallel;
    if (is_fixed("parallel.data") && given.data != 0 && given.data != choice.data) return;
    std::set<int> chunks{1};
    if (is_fixed("parallel.pipeline_chunks"))
      chunks = {given.pipeline_chunks};
    else if (stages > 1)
      chunks = {1, 2, 4, 8, given.pipeline_chunks};
    if (is_fixed("parallel.pipeline_schedule"))
      std::erase_if(chunks, [&](int count) {
        return (given.pipeline_schedule == parallel::PipelineKind::interleaved) != (count > 1);
      });
    for (const int count : chunks) {
      choice.chunks = count;
      for (const std::int64_t micro : micro_batches(choice.data)) {
        choice.micro = micro;
        add_group(choice);
      }
    }
  }

  std::vector<std::int64_t> micro_batches(int data) const {
    const std::int64_t global = request_.deck.batch.global;
    if (is_fixed("batch.micro")) return {request_.deck.batch.micro};
    // An indivisible batch is refused for one micro-batch, not for many.
    return global % data == 0 ? divisors(global / data) : std::vector<std::int64_t>{1};
  }

  void add_group(LayoutChoice choice) {
    LayoutGroup group{.choice = choice, .layout = {}};
    const std::int64_t recomputes = std::ssize(space_.recomputes),
                       layouts = std::ssize(space_.shards_of(group)) * recomputes;
    std::string why;
    const bool is_fixed_sequence = is_fixed("parallel.sequence");
    std::vector<bool> sequences{choice.tensor > 1, false};
    if (is_fixed_sequence) sequences = {request_.deck.parallel.sequence};
    if (choice.tensor == 1 && !is_fixed_sequence) sequences = {false};
    for (const bool sequence : sequences) {
      group.choice.sequence = sequence;
      try {
        const deck::Deck deck = deck_of(request_, group.choice);
        group.layout = layout_of(request_, deck);
        space_.groups.push_back(std::move(group));
        if (choice.data > 1)
          for (const std::string& refusal : shard_refusals_) refusals_.add(refusal, recomputes);
        return;
      } catch (const InputError& error) {
        why = error.what();
      }
    }
    refusals_.add(why, layouts);
  }

  const SearchRequest& request_;
  std::set<std::string> fixed_;
  LayoutSpace space_;
  Refusals refusals_;
  std::vector<std::string> shard_refusals_;
};

}  // namespace

std::vector<keys::Override> overrides_of(const LayoutChoice& choice) {
  std::string offload;
  const auto add = [&](bool is_offloaded, const char* name) {
    if (is_offloaded) offload += fmt::format("{}\"{}\"", offload.empty() ? "" : ", ", name);
  };
  add(choice.offload.optimizer, "optimizer");
  add(choice.offload.parameters, "parameters");
  add(choice.offload.activations, "activations");
  const std::string recompute = choice.recompute == 0   ? "none"
                                : choice.recompute == 1 ? "all"
                                                        : fmt::format("every {}", choice.recompute);
  return {{"parallel.data", choice.data == 0 ? "auto" : fmt::format("{}", choice.data)},
          {"parallel.tensor", fmt::format("{}", choice.tensor)},
          {"parallel.pipeline", fmt::format("{}", choice.pipeline)},
          {"parallel.pipeline_schedule", choice.chunks > 1 ? "interleaved" : "1f1b"},
          {"parallel.pipeline_chunks", fmt::format("{}", choice.chunks)},
          {"parallel.shard", name_of(choice.shard)},
          {"parallel.sequence", choice.sequence ? "true" : "false"},
          {"parallel.recompute", recompute},
          {"parallel.offload", fmt::format("[{}]", offload)},
          {"batch.micro", fmt::format("{}", choice.micro)}};
}

std::vector<ShardKind> LayoutSpace::shards_of(const LayoutGroup& group) const {
  if (group.choice.data > 1 || shards.empty()) return shards;
  // Nothing is shared, so all kinds are the first one.
  return {shards.front()};
}

LayoutSpace make_layout_space(const SearchRequest& request) { return SpaceMaker(request).make(); }

deck::Deck deck_of(const SearchRequest& request, const LayoutChoice& choice) {
  std::vector<keys::Override> overrides = request.overrides;
  for (keys::Override& override_of_choice : overrides_of(choice))
    overrides.push_back(std::move(override_of_choice));
  deck::Deck deck = deck::parse(request.text, request.file, overrides);
  // Assumed data have no folders.
  deck.data = request.deck.data;
  deck.key_locations = request.deck.key_locations;
  return deck;
}

train::ResolvedLayout layout_of(const SearchRequest& request, const deck::Deck& deck) {
  return train::resolve_rows(
             {deck.run, deck.batch, deck.parallel, deck.data, deck.schedule, deck.model},
             request.train, request.ranks)
      .front();
}

train::ReplicaOptions options_of(const SearchRequest& request, const LayoutChoice& choice,
                                 const train::ResolvedLayout& layout) {
  train::ReplicaOptions options = train::make_replica_options(request.deck, request.train, layout);
  options.micro = choice.micro;
  options.pipeline_schedule = choice.chunks > 1 ? parallel::PipelineKind::interleaved
                                                : parallel::PipelineKind::one_forward_one_backward;
  options.pipeline_chunks = choice.chunks;
  options.shard = choice.shard;
  options.sequence = choice.sequence;
  options.recompute = choice.recompute;
  options.offload = choice.offload;
  return options;
}

std::vector<LayoutChoice> with_more_offload(const LayoutSpace& space, const LayoutChoice& choice) {
  std::vector<LayoutChoice> choices;
  if (space.offload_is_fixed || !space.tries_offload) return choices;
  const auto add = [&](bool parallel::Offload::* kind) {
    LayoutChoice more = choice;
    more.offload.*kind = true;
    choices.push_back(more);
  };
  // Each set of kinds is reached in one way: optimizer, then parameters, then activations.
  const parallel::Offload& offload = choice.offload;
  if (offload.activations) return choices;
  if (!offload.optimizer) add(&parallel::Offload::optimizer);
  if (offload.optimizer && !offload.parameters && choice.shard == ShardKind::parameters)
    add(&parallel::Offload::parameters);
  add(&parallel::Offload::activations);
  return choices;
}

}  // namespace trireme::plan
