// SPDX-License-Identifier: Apache-2.0
//
// The search of layouts: best first over lower bounds of the step time.
//
// 1. make_layout_space() lists the layouts that the deck permits.
// 2. Each one enters a queue with its ideal time (SearchBounds), the lowest first.
// 3. The first of the queue is refined: ideal time -> recorded time -> time of recorded stages ->
//    measured memory -> step time of a prediction -> whole prediction. A layout that needs too much
//    memory leaves the queue; its variants with more state in host memory enter it.
// 4. A predicted layout that comes first again is the next of the result: all others take longer.

#include "trireme/plan/search/search.hpp"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "layout_space.hpp"
#include "search_bounds.hpp"
#include "trireme/base/error.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/prediction.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::plan {
namespace {

/// A layout in the queue.
struct Candidate {
  enum class Stage : std::uint8_t { ideal, by_model, staged, measured, timed, predicted };
  double seconds = 0;  ///< A lower bound; the result once it is predicted.
  Stage stage = Stage::ideal;
  std::size_t group = 0;   ///< Of LayoutSpace::groups.
  std::int64_t order = 0;  ///< Among equals the lower one is first.
  LayoutChoice choice = {};
  std::size_t found = 0;  ///< Of Search::found_, once it is predicted.
};

struct IsLater {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.seconds, a.order) > std::tie(b.seconds, b.order);
  }
};

/// Returns fewer micro-batches for which as many are in flight on every stage. No arena needs more
/// with fewer of them.
std::int64_t micro_batches_to_measure(const LayoutChoice& choice, std::int64_t micro_batches) {
  const std::int64_t groups = choice.chunks > 1 ? 2 : 1;
  return std::min(micro_batches, groups * choice.pipeline);
}

std::int64_t host_bytes_of_rank(const Machine& machine, int ranks) {
  const int nodes = nodes_of(machine, ranks), on_a_node = (ranks + nodes - 1) / nodes;
  return machine.node.memory_bytes / on_a_node;
}

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request),
        space_(make_layout_space(request)),
        bounds_(request.machine, request.device, largest_micro_batch(space_)) {}

  SearchResult run() {
    result_.refused = std::move(space_.refused);
    for (const RejectedLayouts& refused : result_.refused) result_.layouts += refused.layouts;
    for (std::size_t group = 0; group < space_.groups.size(); ++group) add_group(group);
    while (!queue_.empty() && std::ssize(result_.best) < request_.max_results) {
      Candidate candidate = queue_.top();
      queue_.pop();
      if (candidate.stage == Candidate::Stage::predicted)
        result_.best.push_back(std::move(found_[candidate.found]));
      else
        refine(std::move(candidate));
    }
    result_.slower = std::ssize(queue_);
    find_smallest();
    return std::move(result_);
  }

 private:
  static std::int64_t largest_micro_batch(const LayoutSpace& space) {
    std::int64_t largest = 1;
    for (const LayoutGroup& group : space.groups) largest = std::max(largest, group.choice.micro);
    return largest;
  }

  const LayoutGroup& group_of(const Candidate& candidate) const {
    return space_.groups[candidate.group];
  }
  train::ReplicaOptions options_for(const Candidate& candidate) const {
    return options_of(request_, candidate.choice, group_of(candidate).layout);
  }

  void add_group(std::size_t index) {
    const LayoutGroup& group = space_.groups[index];
    for (const int recompute : space_.recomputes) {
      for (const parallel::ShardKind shard : space_.shards_of(group)) {
        Candidate candidate{.group = index, .choice = group.choice};
        candidate.choice.recompute = recompute;
        candidate.choice.shard = shard;
        if (space_.offload_is_fixed) candidate.choice.offload = request_.deck.parallel.offload;
        candidate.seconds = bounds_.ideal_seconds(options_for(candidate), shape_of(candidate));
        add(std::move(candidate));
      }
    }
  }

  parallel::MeshShape shape_of(const Candidate& candidate) const {
    return group_of(candidate).layout.mesh_shape();
  }

  /// Returns the place of a layout among those of equal time: the simplest one is first.
  std::int64_t order_of(const Candidate& candidate) const {
    const LayoutChoice& c = candidate.choice;
    const auto recompute = std::ranges::find(space_.recomputes, c.recompute);
    const int offload = (c.offload.optimizer ? 1 : 0) + (c.offload.parameters ? 2 : 0) +
                        (c.offload.activations ? 4 : 0);
    std::int64_t order = static_cast<std::int64_t>(candidate.group);
    order = order * 16 + (recompute - space_.recomputes.begin());
    order = order * 4 + static_cast<int>(c.shard);
    return order * 8 + offload;
  }

  /// Adds a layout unless its state alone needs too much memory.
  void add(Candidate candidate) {
    ++result_.layouts;
    candidate.order = order_of(candidate);
    if (request_.prune) {
      const std::int64_t state = bounds_.state_bytes(options_for(candidate), shape_of(candidate)) +
                                 request_.machine.overhead.reserved_bytes;
      if (!fits(request_.machine, state, request_.ranks)) {
        reject(candidate, state, false);
        return;
      }
    }
    queue_.push(std::move(candidate));
  }

  void refine(Candidate candidate) {
    if (request_.prune && candidate.stage == Candidate::Stage::ideal) {
      candidate.seconds = bounds_.recorded_seconds(options_for(candidate), shape_of(candidate));
      candidate.stage = Candidate::Stage::by_model;
    } else if (request_.prune && candidate.stage == Candidate::Stage::by_model) {
      candidate.seconds = bounds_.staged_seconds(options_for(candidate), shape_of(candidate));
      candidate.stage = Candidate::Stage::staged;
    } else if (request_.prune && candidate.stage == Candidate::Stage::staged) {
      if (!measure(candidate)) return;
      candidate.stage = Candidate::Stage::measured;
    } else if (request_.prune && candidate.stage == Candidate::Stage::measured) {
      ++result_.predicted;
      candidate.seconds = predict_step_seconds(options_for(candidate), group_of(candidate).layout,
                                               request_.device, request_.machine);
      candidate.stage = Candidate::Stage::timed;
    } else if (!predict_exactly(candidate)) {
      return;
    }
    queue_.push(std::move(candidate));
  }

  /// Returns whether a layout may fit. Otherwise it is rejected.
  bool measure(const Candidate& candidate) {
    const std::int64_t known = bytes_of_smaller(candidate);
    if (known > 0) {
      reject(candidate, known, false);
      return false;
    }
    ++result_.measured;
    const std::int64_t bytes = measured_bytes(candidate);
    if (fits(request_.machine, bytes, request_.ranks)) return true;
    remember_bytes(candidate, bytes);
    reject(candidate, bytes, true);
    return false;
  }

  /// Returns the bytes of the first rank of the first or of the last stage, with as few
  /// micro-batches as possible.
  std::int64_t measured_bytes(const Candidate& candidate) const {
    const parallel::MeshShape shape = shape_of(candidate);
    train::ReplicaOptions options = options_for(candidate);
    options.chunk_bounds = train::chunk_bounds(options, shape.pipeline);
    options.accumulation = micro_batches_to_measure(candidate.choice, options.accumulation);
    options.global = options.accumulation * options.micro * shape.data;
    std::int64_t bytes = 0;
    for (const int stage : {0, shape.pipeline - 1}) {
      const int rank = parallel::rank_of(shape, {stage, 0, 0});
      bytes = std::max(
          bytes, bytes_of_rank(request_.machine,
                               train::Replica::measure(options, shape, rank, request_.device)));
      if (shape.pipeline == 1) break;
    }
    return bytes;
  }

  // A layout does not fit if it does not fit with a smaller micro-batch, as long as as many
  // micro-batches are in flight.
  using SameArenas = std::tuple<int, int, int, parallel::ShardKind, int, bool, bool, bool, bool>;
  static SameArenas arenas_of(const LayoutChoice& c) {
    return {c.tensor,
            c.pipeline,
            c.chunks,
            c.shard,
            c.recompute,
            c.sequence,
            c.offload.optimizer,
            c.offload.parameters,
            c.offload.activations};
  }
  bool is_full(const Candidate& candidate) const {
    const std::int64_t count = group_of(candidate).layout.accumulation;
    return count >= 2 * candidate.choice.pipeline * (candidate.choice.chunks > 1 ? 2 : 1);
  }
  void remember_bytes(const Candidate& candidate, std::int64_t bytes) {
    if (!is_full(candidate)) return;
    const auto [place, is_new] =
        too_large_.try_emplace(arenas_of(candidate.choice), candidate.choice.micro, bytes);
    if (!is_new && candidate.choice.micro < place->second.first)
      place->second = {candidate.choice.micro, bytes};
  }
  std::int64_t bytes_of_smaller(const Candidate& candidate) const {
    const auto found = too_large_.find(arenas_of(candidate.choice));
    return found != too_large_.end() && found->second.first < candidate.choice.micro &&
                   is_full(candidate)
               ? found->second.second
               : 0;
  }

  /// Predicts a layout. Returns whether it fits; otherwise it is rejected.
  bool predict_exactly(Candidate& candidate) {
    if (candidate.stage != Candidate::Stage::timed) ++result_.predicted;
    FoundLayout found{.choice = candidate.choice, .deck = deck_of(request_, candidate.choice)};
    found.layout = layout_of(request_, found.deck);
    const train::ReplicaOptions options =
        train::make_replica_options(found.deck, request_.train, found.layout);
    if (!model_work_) model_work_ = work_of_model(options);
    const Prediction prediction =
        predict(options, found.layout, request_.device, request_.machine, model_work_);
    bool host_fits = true;
    for (const Place& place : prediction.places) {
      if (const std::int64_t bytes = bytes_of_rank(request_.machine, place.memory);
          bytes > found.bytes) {
        found.bytes = bytes;
        found.memory = place.memory;
      }
      host_fits = host_fits && fits_into_host(place.memory);
    }
    if (!fits(request_.machine, found.bytes, request_.ranks) || !host_fits) {
      reject(candidate, found.bytes, true);
      return false;
    }
    found.step_seconds = prediction.step_seconds;
    found.copy_seconds = copy_seconds(candidate, prediction);
    const double slowdown = found.seconds() / found.step_seconds;
    if (prediction.mfu()) found.mfu = *prediction.mfu() / slowdown;
    if (prediction.run_seconds) found.run_seconds = *prediction.run_seconds * slowdown;
    found.nodes = prediction.nodes;
    candidate.seconds = found.seconds();
    candidate.stage = Candidate::Stage::predicted;
    candidate.found = found_.size();
    found_.push_back(std::move(found));
    return true;
  }

  /// Returns whether the offloaded state of the ranks of a node fits into its memory.
  bool fits_into_host(const train::MemoryPlan& plan) const {
    return request_.machine.node.memory_bytes == 0 ||
           request_.machine.device.kind == MachineKind::cpu ||
           plan.host_total() <= host_bytes_of_rank(request_.machine, request_.ranks);
  }

  /// Returns the seconds of copies to and from the host in a step: slots and master weights once,
  /// activations for every micro-batch.
  double copy_seconds(const Candidate& candidate, const Prediction& prediction) const {
    if (!candidate.choice.offload.any()) return 0;
    double bytes = 0;
    for (const Place& place : prediction.places) {
      const train::MemoryPlan& plan = place.memory;
      const double in_flight =
          static_cast<double>(std::max<std::size_t>(1, plan.activations.size()));
      const double passes =
          static_cast<double>(group_of(candidate).layout.accumulation) * candidate.choice.chunks;
      bytes = std::max(bytes, static_cast<double>(plan.host_optimizer + plan.host_parameters) +
                                  static_cast<double>(plan.host_activations) / in_flight * passes);
    }
    return 2 * bytes / request_.machine.node.host_copy_bytes_per_s;
  }

  void reject(const Candidate& candidate, std::int64_t bytes, bool is_measured) {
    ++result_.too_large;
    rejected_.push_back({bytes, is_measured, candidate});
    for (LayoutChoice& more : with_more_offload(space_, candidate.choice))
      add({.seconds = candidate.seconds,
           .stage = std::min(candidate.stage, Candidate::Stage::staged),
           .group = candidate.group,
           .choice = more});
  }

  /// Finds the rejected layout that needs least. If no layout fits, bounds are replaced by measured
  /// bytes until the lowest is measured.
  void find_smallest() {
    const auto needs_more = [](const TooLarge& a, const TooLarge& b) {
      return std::tie(a.bytes, a.candidate.order) > std::tie(b.bytes, b.candidate.order);
    };
    std::ranges::make_heap(rejected_, needs_more);
    while (!rejected_.empty()) {
      TooLarge& lowest = rejected_.front();
      if (lowest.is_measured || !result_.best.empty()) {
        result_.smallest_bytes = lowest.bytes;
        result_.smallest = lowest.candidate.choice;
        return;
      }
      std::ranges::pop_heap(rejected_, needs_more);
      ++result_.measured;
      rejected_.back().bytes =
          std::max(rejected_.back().bytes, measured_bytes(rejected_.back().candidate));
      rejected_.back().is_measured = true;
      std::ranges::push_heap(rejected_, needs_more);
    }
  }

  /// A layout that needs too much memory.
  struct TooLarge {
    std::int64_t bytes = 0;  ///< A lower bound unless it is measured.
    bool is_measured = false;
    Candidate candidate;
  };

  const SearchRequest& request_;
  LayoutSpace space_;
  SearchBounds bounds_;
  SearchResult result_;
  std::priority_queue<Candidate, std::vector<Candidate>, IsLater> queue_;
  std::vector<FoundLayout> found_;
  std::optional<ModelWork> model_work_;
  std::vector<TooLarge> rejected_;
  std::map<SameArenas, std::pair<std::int64_t, std::int64_t>> too_large_;  // micro-batch, bytes
};

}  // namespace

SearchResult search_layouts(const SearchRequest& request) { return Search(request).run(); }

}  // namespace trireme::plan
