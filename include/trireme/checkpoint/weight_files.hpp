#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::checkpoint {

/// Reads the index of weights in several safetensors files (`model.safetensors.index.json` of
/// Hugging Face): the file of each tensor, by name. Throws InputError for other text, more than 64
/// MiB, and names that are none of a safetensors file in the folder of the index.
std::map<std::string, std::string> read_weight_index(const std::string& path);

/// The weights of another program: one safetensors file, or several with an index.
///
/// Tensors have plain names. The prefixes `module.` (DistributedDataParallel), `_orig_mod.`
/// (torch.compile, at any level) and `transformer.` (GPT-2 with a head) are taken off.
class WeightFiles {
 public:
  struct Tensor {
    std::string location;  ///< "file: stored name", for messages
    std::string stored_name;
    std::size_t file = 0;  ///< index of files()
    Shape shape;
  };
  /// Opens a safetensors file, an index (*.json), or a folder with `model.safetensors` or
  /// `model.safetensors.index.json`. Reads the headers only. Throws InputError with file and
  /// tensor: also for files and an index that name different tensors, and for two tensors of one
  /// plain name.
  explicit WeightFiles(const std::string& path);

  const std::string& path() const { return path_; }
  /// Returns the folder of the files; empty for the current one.
  std::string folder() const;
  const std::vector<std::string>& files() const { return files_; }
  /// Returns all tensors by plain name.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Reads a tensor by its plain name, as SafetensorsReader does.
  std::vector<float> read_float32(const std::string& name) const;

 private:
  void open_file(const std::string& path);
  void open_index(const std::string& path);

  std::string path_;
  std::vector<std::string> files_;
  std::vector<SafetensorsReader> readers_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace trireme::checkpoint
