// SPDX-License-Identifier: Apache-2.0
//
// The weights of another program in one or several safetensors files.
//
// A folder leads to its file or its index; an index leads to files beside it. Index and files must
// name the same tensors: a tensor that one of them leaves out would be lost without a word. Names
// lose the prefixes of wrappers. Called by `trireme import`.
#include "trireme/checkpoint/weights/weight_files.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/json.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char *single_name = "model.safetensors",
                     *index_name = "model.safetensors.index.json", *config_name = "config.json",
                     *adapter_name = "adapter_model.safetensors";
// A name and a file for each tensor, below index and weight_map.
constexpr io::JsonLimits index_limits{
    .bytes = std::int64_t{64} << 20, .depth = 4, .values = 4'000'000, .members = 1'000'000};
// Files of the largest models have 5 GB each.
constexpr std::size_t max_files = 4096;

// Wrappers around any module: torch.compile, FSDP, activation checkpoints.
constexpr std::string_view inner_wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                               "_checkpoint_wrapped_module."};
// Wrappers around the model: DistributedDataParallel, Lightning and its checkpoints, GPT-2's head.
constexpr std::string_view outer_wrappers[] = {"module.", "_forward_module.", "state_dict.",
                                               "net.",    "model.",           "transformer."};

/// Returns whether `model.` at the begin of a name is that of Llama, and no wrapper.
bool is_name_of_llama(std::string_view name) {
  // A layer of Llama has more components than one of an mlp, model.layers.0.weight in a wrapper.
  return name.starts_with("model.embed_tokens.") || name.starts_with("model.norm.") ||
         (name.starts_with("model.layers.") && std::count(name.begin(), name.end(), '.') > 3);
}

/// Returns the name of a tensor without the prefixes of wrappers.
std::string plain_name(std::string name) {
  for (const std::string_view wrapper : inner_wrappers)
    for (std::size_t at = 0; (at = name.find(wrapper, at)) != std::string::npos;) {
      const bool is_component = at == 0 || name[at - 1] == '.';
      if (is_component)
        name.erase(at, wrapper.size());
      else
        at += wrapper.size();
    }
  const auto is_wrapped = [&](std::string_view wrapper) {
    return name.starts_with(wrapper) && !is_name_of_llama(name);
  };
  for (;;) {
    const auto wrapper =
        std::find_if(std::begin(outer_wrappers), std::end(outer_wrappers), is_wrapped);
    if (wrapper == std::end(outer_wrappers)) return name;
    name.erase(0, wrapper->size());
  }
}

/// Returns whether a tensor belongs to an adapter of PEFT.
bool is_of_adapter(const std::string& name) {
  const std::string padded = "." + name;
  const auto has = [&](const char* part) { return padded.find(part) != std::string::npos; };
  return name.starts_with("base_model.model.") || has(".lora_") || has(".ia3_") ||
         has(".base_layer.");
}
constexpr const char* merge_advice =
    "merge it into its model first (merge_and_unload() of PEFT, then save_pretrained())";

/// Throws InputError if the name of a file is that of one of several, NAME-00001-of-00003.
void validate_whole(const fs::path& file) {
  constexpr std::size_t digits = 5;
  constexpr std::string_view pattern = "-00000-of-00000";
  const std::string stem = file.stem().string();
  if (file.extension() != ".safetensors" || stem.size() <= pattern.size()) return;
  std::string part = stem.substr(stem.size() - pattern.size());
  const std::string number = part.substr(1, digits), count = part.substr(part.size() - digits);
  for (char& c : part)
    if (c >= '0' && c <= '9') c = '0';
  if (part != pattern || count <= "00001") return;
  const std::string name = stem.substr(0, stem.size() - pattern.size()) + ".safetensors.index.json";
  const std::string index = (file.parent_path() / name).string();
  throw InputError(fmt::format(
      "{}: is file {} of {} of a model; give the index of all of them, {}{}", file.string(), number,
      count, index,
      is_there(index) ? ", or its folder" : ", which is missing here: copy it and all files"));
}

/// Returns the file or the index of weights in a folder. Throws InputError if there is none of
/// them, or both.
std::string find_in_folder(const std::string& folder) {
  const fs::path single = fs::path(folder) / single_name, index = fs::path(folder) / index_name;
  const bool has_single = is_there(single), has_index = is_there(index);
  validate(!has_single || !has_index, "{}: holds {} and {}; give the one to import", folder,
           single_name, index_name);
  validate(has_single || has_index || !is_there(fs::path(folder) / adapter_name),
           "{}: holds an adapter of PEFT ({}), not the weights of a model; {}", folder,
           adapter_name, merge_advice);
  if (!has_single && !has_index) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
      validate_whole(entry->path());
  }
  validate(has_single || has_index,
           "{}: is a folder and holds neither {} nor {}; give the .safetensors file (weights of "
           "torch.save are saved again with safetensors.torch.save_model)",
           folder, single_name, index_name);
  return (has_single ? single : index).string();
}

}  // namespace

std::map<std::string, std::string> read_weight_index(const std::string& path) {
  const nlohmann::json index = io::parse_json_object<nlohmann::json>(
      io::read_text_file(path, index_limits.bytes), path, index_limits);
  validate(index.contains("weight_map") && index["weight_map"].is_object() &&
               !index["weight_map"].empty(),
           "{}: has no weight_map, an object with the file of each tensor; expected the index of "
           "weights in several files ({})",
           path, index_name);
  std::map<std::string, std::string> file_of;
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    validate(file.is_string(), "{}: weight_map: the file of {} is of type {}, but must be a string",
             path, printable(tensor), file.type_name());
    const auto name = file.get<std::string>();
    validate(name.ends_with(".safetensors") &&
                 name.find_first_of(std::string_view("/\0", 2)) == std::string::npos,
             "{}: weight_map: the file of {} is {}, but must be the name of a .safetensors file in "
             "the same folder",
             path, printable(tensor), printable(name));
    files.insert(name);
    file_of.emplace(tensor, name);
  }
  validate(files.size() <= max_files, "{}: names {} files, more than {}", path, files.size(),
           max_files);
  return file_of;
}

WeightFiles::WeightFiles(const std::string& path) : path_(path) {
  std::error_code ignored;
  const std::string source = fs::is_directory(path, ignored) ? find_in_folder(path) : path;
  if (source.ends_with(".json")) {
    open_index(source);
  } else {
    validate_whole(source);
    open_file(source);
  }
}

std::vector<std::string> WeightFiles::source_files() const {
  std::vector<std::string> paths = files_;
  if (!index_.empty()) paths.push_back(index_);
  return paths;
}

std::optional<std::string> WeightFiles::config() const {
  std::error_code ignored;
  // The cache of Hugging Face has links to weights and config.json in one folder; users also link
  // to weights elsewhere.
  const fs::path file = files_.front(), target = fs::weakly_canonical(file, ignored);
  for (const fs::path& place : {file, target}) {
    const fs::path config = place.parent_path() / config_name;
    if (!place.empty() && is_there(config)) return config.string();
  }
  return std::nullopt;
}

void WeightFiles::open_file(const std::string& path) {
  const SafetensorsReader& reader = readers_.emplace_back(path);
  const std::size_t file = files_.size();
  files_.push_back(path);
  for (const auto& [stored, entry] : reader.entries()) {
    Tensor tensor{fmt::format("{}: {}", path, printable(stored)), stored, file, entry.shape};
    validate(!is_of_adapter(stored),
             "{}: is of an adapter of PEFT, not of the weights of a model; {}", tensor.location,
             merge_advice);
    const auto [place, is_new] = tensors_.emplace(plain_name(stored), tensor);
    validate(is_new, "{} and {} are the same tensor {} with and without a prefix", tensor.location,
             place->second.location, printable(place->first));
  }
}

void WeightFiles::open_index(const std::string& path) {
  index_ = path;
  const std::map<std::string, std::string> file_of = read_weight_index(path);
  const fs::path folder = fs::path(path).parent_path();
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  for (const std::string& name : names) {
    std::error_code ignored;
    validate(
        fs::exists(folder / name, ignored),
        "{}: the index names {}, which is not in its folder; all files of the model are needed",
        path, name);
    open_file((folder / name).string());
    for (const auto& [stored, entry] : readers_.back().entries()) {
      const auto named = file_of.find(stored);
      validate(named != file_of.end() && named->second == name,
               "{}: holds {}, which {} {}; give files and index of one model", files_.back(),
               printable(stored), path,
               named == file_of.end() ? "does not name" : "names in " + named->second);
    }
  }
  std::set<std::string> found;
  for (const SafetensorsReader& reader : readers_)
    for (const auto& [stored, entry] : reader.entries()) found.insert(stored);
  for (const auto& [tensor, file] : file_of)
    validate(found.contains(tensor), "{}: has no tensor {}, which {} names",
             (folder / file).string(), printable(tensor), path);
}

std::string WeightFiles::hint_for_missing(const std::string& name) const {
  const std::string end = "." + name;
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const auto& tensor) { return tensor.first.ends_with(end); });
  if (found == tensors_.end() || tensors_.contains(name)) return "";
  const std::string prefix = found->first.substr(0, found->first.size() - name.size());
  // layer1.0. is not a prefix but the name of a part.
  const bool is_of_all = std::all_of(tensors_.begin(), tensors_.end(), [&](const auto& tensor) {
    return tensor.first.starts_with(prefix) || tensor.first == "lm_head.weight";
  });
  if (!is_of_all) return "";
  return fmt::format("; the file has {}: save its tensors without the prefix {}",
                     printable(found->second.stored_name), printable(prefix));
}

std::vector<float> WeightFiles::read_float32(const std::string& name) const {
  const Tensor& tensor = tensors_.at(name);
  return readers_[tensor.file].read_float32(tensor.stored_name);
}

}  // namespace trireme::checkpoint
