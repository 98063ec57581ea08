// The weights of another program in one or several safetensors files.
//
// A folder leads to its file or its index; an index leads to files beside it. Index and files must
// name the same tensors: a tensor that one of them leaves out would be lost without a word. Names
// lose the prefixes of wrappers. Called by `trireme import`.
#include "trireme/checkpoint/weight_files.hpp"

#include <filesystem>
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
                     *index_name = "model.safetensors.index.json";
// A name and a file for each tensor, below index and weight_map.
constexpr io::JsonLimits index_limits{
    .bytes = std::int64_t{64} << 20, .depth = 4, .values = 4'000'000, .members = 1'000'000};
// Files of the largest models have 5 GB each.
constexpr std::size_t max_files = 4096;

/// Returns the name of a tensor without the prefixes of wrappers.
std::string plain_name(std::string name) {
  constexpr std::string_view compiled = "_orig_mod.", parallel = "module.", head = "transformer.";
  for (std::size_t at = 0; (at = name.find(compiled, at)) != std::string::npos;) {
    const bool is_component = at == 0 || name[at - 1] == '.';
    if (is_component)
      name.erase(at, compiled.size());
    else
      at += compiled.size();
  }
  while (name.starts_with(parallel)) name.erase(0, parallel.size());
  if (name.starts_with(head)) name.erase(0, head.size());
  return name;
}

/// Returns the file or the index of weights in a folder. Throws InputError if there is none of
/// them, or both.
std::string find_in_folder(const std::string& folder) {
  const fs::path single = fs::path(folder) / single_name, index = fs::path(folder) / index_name;
  const bool has_single = is_there(single), has_index = is_there(index);
  validate(!has_single || !has_index, "{}: holds {} and {}; give the one to import", folder,
           single_name, index_name);
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
  if (source.ends_with(".json"))
    open_index(source);
  else
    open_file(source);
}

std::string WeightFiles::folder() const { return fs::path(files_.front()).parent_path().string(); }

void WeightFiles::open_file(const std::string& path) {
  const SafetensorsReader& reader = readers_.emplace_back(path);
  const std::size_t file = files_.size();
  files_.push_back(path);
  for (const auto& [stored, entry] : reader.entries()) {
    Tensor tensor{fmt::format("{}: {}", path, printable(stored)), stored, file, entry.shape};
    const auto [place, is_new] = tensors_.emplace(plain_name(stored), tensor);
    validate(is_new, "{} and {} are the same tensor {} with and without a prefix", tensor.location,
             place->second.location, printable(place->first));
  }
}

void WeightFiles::open_index(const std::string& path) {
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

std::vector<float> WeightFiles::read_float32(const std::string& name) const {
  const Tensor& tensor = tensors_.at(name);
  return readers_[tensor.file].read_float32(tensor.stored_name);
}

}  // namespace trireme::checkpoint
