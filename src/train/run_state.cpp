#include "trireme/train/run_state.hpp"

#include <type_traits>

namespace trireme::train {
namespace {

template <class T>
T value_or(const checkpoint::Info& info, const std::string& key, T otherwise) {
  const auto found = info.state.find(key);
  if (found == info.state.end()) return otherwise;
  return std::visit(
      [&](const auto& value) -> T {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) return static_cast<T>(value);
        return otherwise;
      },
      found->second);
}

}  // namespace

std::vector<checkpoint::Piece> pieces_of(Replica& replica, const parallel::Mesh& mesh, Rows rows, bool slots) {
  std::vector<checkpoint::Piece> pieces;
  parallel::ParameterStore& store = replica.store();
  const auto& entries = store.list().entries();
  const auto add = [&](const std::string& group, std::size_t index, const Tensor& flat) {
    const parallel::ParameterSpec& spec = entries[index].spec;
    const std::int64_t count = spec.rows();
    std::int64_t begin = 0, end = count;
    if (rows == Rows::share) {
      begin = count * mesh.place.data_rank / mesh.shape.data;
      end = count * (mesh.place.data_rank + 1) / mesh.shape.data;
    }
    float* data = flat.as<float>() + store.layout().slot({static_cast<std::int32_t>(index)}).offset + begin * spec.row_elements();
    pieces.push_back({group + "/" + spec.name, &spec, begin, end, data});
  };
  for (std::size_t i = 0; i < entries.size(); ++i) add(entries[i].spec.role == parallel::Role::weight ? "model" : "buffers", i, store.flat_master());
  if (!slots) return pieces;
  for (const optim::Optimizer::Slot& slot : replica.optimizer().slots()) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].spec.role == parallel::Role::weight) add("optimizer/" + slot.name, i, slot.flat);
    }
  }
  return pieces;
}

checkpoint::Info info_of(const RunState& state, Replica& replica, const std::string& deck, const std::vector<std::string>& classes, std::uint64_t dataset,
                         std::uint64_t seed) {
  checkpoint::Info info;
  info.step = state.step;
  info.epoch = state.cursor.epoch;
  info.epoch_samples = state.cursor.taken;
  info.samples = state.samples;
  info.updates = replica.optimizer().updates();
  info.deck = deck;
  info.classes = classes;
  info.state["seed"] = seed;
  info.state["dataset"] = dataset;
  info.state["elapsed_s"] = state.elapsed_seconds;
  info.state["skipped"] = state.skipped;
  info.state["loss_scale"] = 1.0;
  if (state.best) {
    info.state["best"] = *state.best;
    info.state["best_metric"] = state.best_metric;
    info.state["best_step"] = state.best_step;
  }
  return info;
}

std::optional<std::uint64_t> dataset_of(const checkpoint::Info& info) {
  if (!info.state.contains("dataset")) return std::nullopt;
  return value_or<std::uint64_t>(info, "dataset", 0);  // HDF5 gives it back signed where it fits
}

RunState state_of(const checkpoint::Info& info) {
  RunState state;
  state.step = info.step;
  state.samples = info.samples;
  state.cursor = {info.epoch, info.epoch_samples};
  state.elapsed_seconds = value_or<double>(info, "elapsed_s", 0);
  state.skipped = value_or<std::int64_t>(info, "skipped", 0);
  if (info.state.contains("best")) state.best = value_or<double>(info, "best", 0);
  if (const auto metric = info.state.find("best_metric"); metric != info.state.end()) {
    if (const auto* name = std::get_if<std::string>(&metric->second)) state.best_metric = *name;
  }
  state.best_step = value_or<std::int64_t>(info, "best_step", 0);
  return state;
}

}  // namespace trireme::train
