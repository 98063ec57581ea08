// Import of safetensors files as checkpoints, and export of checkpoints as safetensors files.
//
// Import compares names and shapes with the model of the deck. It checks a tied head and that all
// values are finite, then writes a checkpoint of step 0. Export verifies the checkpoint first.
// Called by `trireme import` and `trireme export`; both run on one rank and hold all tensors in
// memory.
#include "trireme/checkpoint/import_export.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

// Tensors that an error message names.
constexpr std::size_t max_named_tensors = 5;

/// Returns whether a tensor of a file is ignored. Files of other libraries contain counters and
/// buffers that a model computes itself (causal masks, rotary frequencies).
bool is_ignored(const std::string& name, const Shape& shape) {
  const bool mask = shape.rank() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] == shape[3];
  return name.ends_with("num_batches_tracked") || (name.ends_with(".attn.bias") && mask) ||
         name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

constexpr const char* head_name = "lm_head.weight";

/// Returns the name of the embedding that the model uses as its head. Empty if the model has a head
/// of its own, or no embedding.
std::string tied_embedding(const parallel::ParameterList& expected) {
  if (expected.find(head_name) >= 0) return "";
  for (const char* name : {"wte.weight", "model.embed_tokens.weight"}) {
    if (expected.find(name) >= 0) return name;
  }
  return "";
}

/// Returns a map from the name in the model to the name in the file. Throws InputError if a name
/// occurs with and without the prefix.
std::map<std::string, std::string> map_names_to_file(const SafetensorsReader& reader,
                                                     const std::string& file) {
  constexpr std::string_view prefix = "transformer.";
  std::map<std::string, std::string> names;
  for (const auto& [name, entry] : reader.entries()) {
    const std::string plain = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    validate(names.emplace(plain, name).second, "{}: {} occurs with and without the prefix {}",
             file, plain, prefix);
  }
  return names;
}

/// Returns one message for each tensor that is missing, has another shape or is not in the model.
/// Compares the lists of the model and of the file.
std::vector<std::string> find_mismatches(const SafetensorsReader& reader,
                                         const std::map<std::string, std::string>& names,
                                         const parallel::ParameterList& expected) {
  std::vector<std::string> found;
  for (const parallel::ParameterList::Entry& entry : expected.entries()) {
    const parallel::ParameterSpec& spec = entry.spec;
    const auto name = names.find(spec.name);
    if (name == names.end()) {
      found.push_back(fmt::format("{} {} is missing", spec.name, to_string(spec.shape)));
      continue;
    }
    const Shape& shape = reader.entries().at(name->second).shape;
    if (!(shape == spec.shape))
      found.push_back(fmt::format("{} has shape {}, but the deck's model has {}", spec.name,
                                  to_string(shape), to_string(spec.shape)));
  }
  const bool tied = !tied_embedding(expected).empty();
  for (const auto& [plain, name] : names) {
    const Shape& shape = reader.entries().at(name).shape;
    if (expected.find(plain) >= 0 || is_ignored(plain, shape) || (tied && plain == head_name))
      continue;
    found.push_back(fmt::format("{} {} is not in the deck's model", name, to_string(shape)));
  }
  return found;
}

/// Checks that the head in a file equals the embedding bit for bit, if the model ties them. Throws
/// InputError.
void check_tied_head(const SafetensorsReader& reader,
                     const std::map<std::string, std::string>& names,
                     const parallel::ParameterList& expected, const std::string& file) {
  const std::string embedding = tied_embedding(expected);
  if (embedding.empty() || !names.contains(head_name)) return;
  const std::string &head = names.at(head_name), &stored = names.at(embedding);
  bool same = reader.entries().at(head).shape == reader.entries().at(stored).shape;
  if (same) {
    const std::vector<float> a = reader.read_float32(head), b = reader.read_float32(stored);
    same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  validate(same,
           "{}: {} differs from {}, but the deck's model ties them; with model.tie_embeddings = "
           "false both are kept",
           file, head, stored);
}

}  // namespace

void import_safetensors(const std::string& file, const parallel::ParameterList& expected,
                        const std::string& deck, const std::string& checkpoint) {
  // 1. Compare names and shapes with the model.
  const SafetensorsReader reader(file);
  const std::map<std::string, std::string> names = map_names_to_file(reader, file);
  std::vector<std::string> mismatches = find_mismatches(reader, names, expected);
  const std::size_t count = mismatches.size();
  mismatches.resize(std::min(count, max_named_tensors));
  validate(mismatches.empty(), "{}: {} tensors do not fit the model of the deck:\n  {}{}", file,
           count, fmt::join(mismatches, "\n  "), count > max_named_tensors ? "\n  ..." : "");
  check_tied_head(reader, names, expected, file);

  // 2. Read all values and check that they are finite.
  std::vector<parallel::ParameterSpec> specs;
  std::vector<std::vector<float>> values;
  for (const parallel::ParameterList::Entry& entry : expected.entries()) {
    specs.push_back(entry.spec);
    // Both files hold rows in file order: nothing to reorder.
    specs.back().inner = parallel::InnerOrder::plain;
    values.push_back(reader.read_float32(names.at(entry.spec.name)));
    const bool finite = std::all_of(values.back().begin(), values.back().end(),
                                    [](float value) { return std::isfinite(value); });
    validate(finite,
             "{}: {} holds a value that is not finite: nothing can be trained or computed from it",
             file, names.at(entry.spec.name));
  }
  // 3. Write the checkpoint, with the deck and step 0.
  std::vector<TensorSlice> slices;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string group = specs[i].role == parallel::Role::weight ? "model/" : "buffers/";
    slices.push_back({group + specs[i].name, &specs[i], 0, specs[i].rows(), values[i].data()});
  }
  Info info;
  info.deck = deck;
  write(comm::Communicator(), checkpoint, slices, info);
}

bool selects_average(Weights weights, const Contents& contents, const std::string& path) {
  if (weights == Weights::model) return false;
  const bool has_average =
      std::any_of(contents.tensors.begin(), contents.tensors.end(),
                  [](const Contents::Entry& entry) { return entry.path.starts_with("ema/"); });
  validate(has_average || weights != Weights::ema,
           "{}: holds no average of the weights (/ema): it was written without optimizer.ema; take "
           "the weights as trained (--weights model)",
           path);
  return has_average;
}

void export_safetensors(const std::string& checkpoint, const std::string& file, Weights weights) {
  reject_folder(checkpoint);
  std::string damage = io::check_seal(checkpoint);
  validate(!io::is_damage(damage), "{}: {}", checkpoint, damage);
  const io::Hdf5Reader reader(io::index_hdf5(checkpoint));
  damage = verify_values(reader);
  validate(damage.empty() || damage == "no checksums", "{}: {}", checkpoint, damage);
  const Contents contents = read_contents(reader.index());
  const std::vector<std::string> groups = selects_average(weights, contents, checkpoint)
                                              ? std::vector<std::string>{"ema/"}
                                              : std::vector<std::string>{"model/", "buffers/"};
  std::vector<SafetensorsTensor> tensors;
  for (const Contents::Entry& entry : contents.tensors) {
    for (const std::string& group : groups) {
      if (entry.path.starts_with(group))
        tensors.push_back(
            {entry.path.substr(group.size()), entry.shape, read_tensor(reader, entry.path)});
    }
  }
  validate(!tensors.empty(), "{}: has no tensors in /model", checkpoint);
  write_safetensors(file, tensors, {{"format", "pt"}});
}

}  // namespace trireme::checkpoint
