#include "trireme/checkpoint/exchange.hpp"

#include <algorithm>
#include <map>

#include "trireme/base/check.hpp"
#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/checkpoint/verify.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::size_t most_named = 5;

bool is_passed_over(const std::string& name) {
  return name.ends_with("num_batches_tracked") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// Name in the model -> name in the file.
std::map<std::string, std::string> names_of(const SafetensorsReader& reader, const std::string& file) {
  constexpr std::string_view prefix = "transformer.";
  std::map<std::string, std::string> names;
  for (const auto& [name, entry] : reader.entries()) {
    const std::string plain = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    validate(names.emplace(plain, name).second, "{}: {} is there with and without the prefix {}", file, plain, prefix);
  }
  return names;
}

/// What does not fit, in words: for all tensors of the model and of the file.
std::vector<std::string> misfits(const SafetensorsReader& reader, const std::map<std::string, std::string>& names,
                                 const parallel::ParameterList& expected) {
  std::vector<std::string> found;
  std::map<std::string, bool> known;
  for (const auto& [spec, block] : expected.entries()) {
    known[spec.name] = true;
    const auto name = names.find(spec.name);
    if (name == names.end()) {
      found.push_back(fmt::format("{} {} is missing", spec.name, to_string(spec.shape)));
      continue;
    }
    const Shape& shape = reader.entries().at(name->second).shape;
    if (!(shape == spec.shape))
      found.push_back(fmt::format("{} has shape {} where the deck's model has {}", spec.name, to_string(shape), to_string(spec.shape)));
  }
  const bool tied = known.contains("wte.weight") && !known.contains("lm_head.weight");
  for (const auto& [plain, name] : names) {
    if (known.contains(plain) || is_passed_over(plain) || (tied && plain == "lm_head.weight")) continue;
    found.push_back(fmt::format("{} {} is not in the deck's model", name, to_string(reader.entries().at(name).shape)));
  }
  return found;
}

void check_tie(const SafetensorsReader& reader, const std::map<std::string, std::string>& names, const parallel::ParameterList& expected,
               const std::string& file) {
  const bool untied =
      std::any_of(expected.entries().begin(), expected.entries().end(), [](const auto& entry) { return entry.spec.name == "lm_head.weight"; });
  if (untied || !names.contains("lm_head.weight") || !names.contains("wte.weight")) return;
  validate(reader.read_float32(names.at("lm_head.weight")) == reader.read_float32(names.at("wte.weight")),
           "{}: lm_head.weight differs from wte.weight, but the deck's model ties them (model.tie_embeddings)", file);
}

}  // namespace

void import_safetensors(const std::string& file, const parallel::ParameterList& expected, const std::string& deck, const std::string& checkpoint) {
  const SafetensorsReader reader(file);
  const std::map<std::string, std::string> names = names_of(reader, file);
  std::vector<std::string> wrong = misfits(reader, names, expected);
  const std::size_t count = wrong.size();
  wrong.resize(std::min(count, most_named));
  validate(wrong.empty(), "{}: {} tensors do not fit the model of the deck:\n  {}{}", file, count, fmt::join(wrong, "\n  "),
           count > most_named ? "\n  ..." : "");
  check_tie(reader, names, expected, file);

  std::vector<parallel::ParameterSpec> specs;
  std::vector<std::vector<float>> values;
  for (const auto& [spec, block] : expected.entries()) {
    specs.push_back(spec);
    specs.back().inner = parallel::InnerOrder::plain;  // both files hold rows in the file's order
    values.push_back(reader.read_float32(names.at(spec.name)));
  }
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string group = specs[i].role == parallel::Role::weight ? "model/" : "buffers/";
    pieces.push_back({group + specs[i].name, &specs[i], 0, specs[i].rows(), values[i].data()});
  }
  Info info;
  info.deck = deck;
  write(comm::Communicator(), checkpoint, pieces, info);
}

void export_safetensors(const std::string& checkpoint, const std::string& file) {
  const std::string damage = verify_checkpoint(checkpoint);
  validate(damage.empty() || damage == "no checksums", "{}: {}", checkpoint, damage);
  std::vector<SafetensorsTensor> tensors;
  for (const Contents::Entry& entry : read_contents(checkpoint).tensors) {
    for (const std::string group : {"model/", "buffers/"}) {
      if (entry.path.starts_with(group)) tensors.push_back({entry.path.substr(group.size()), entry.shape, read_tensor(checkpoint, entry.path)});
    }
  }
  validate(!tensors.empty(), "{}: has no tensors in /model", checkpoint);
  write_safetensors(file, tensors, {{"format", "pt"}});
}

}  // namespace trireme::checkpoint
