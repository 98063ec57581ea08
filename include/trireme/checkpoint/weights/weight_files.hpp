// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/weights/safetensors.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::checkpoint {

/// Reads the index of weights in several safetensors files (`model.safetensors.index.json` of
/// Hugging Face): the file of each tensor, by name. Throws InputError for other text, more than 64
/// MiB, and names that are none of a safetensors file in the folder of the index.
std::map<std::string, std::string> read_weight_index(const std::string& path);

/// The weights of another program: one safetensors file, or several with an index.
///
/// Tensors have plain names. The prefixes of wrappers are taken off: `_orig_mod.` (torch.compile)
/// and those of FSDP and activation checkpoints at any level; `module.` (DistributedDataParallel),
/// `model.`, `net.` and `state_dict.` (Lightning), and `transformer.` (GPT-2 with a head) at the
/// begin. `model.` is kept where it belongs to Llama's own names.
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
  /// tensor: also for files and an index that name different tensors, for two tensors of one plain
  /// name, for one file of several (NAME-00001-of-00003), and for adapters of PEFT.
  explicit WeightFiles(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<std::string>& files() const { return files_; }
  /// Returns the paths of the files and of the index, if there is one.
  std::vector<std::string> source_files() const;
  /// Returns the path of the `config.json` of the weights: beside the first file, else beside the
  /// file to which a link leads. Returns none if neither is there.
  std::optional<std::string> config() const;
  /// Returns all tensors by plain name.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Returns what to do, after "; ", if a missing tensor is there behind another prefix; else "".
  std::string hint_for_missing(const std::string& name) const;
  /// Reads a tensor by its plain name, as SafetensorsReader does.
  std::vector<float> read_float32(const std::string& name) const;

 private:
  void open_file(const std::string& path);
  void open_index(const std::string& path);

  std::string path_;
  std::string index_;  ///< path; empty without an index
  std::vector<std::string> files_;
  std::vector<SafetensorsReader> readers_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace trireme::checkpoint
