// SPDX-License-Identifier: Apache-2.0
//
// Import of safetensors files as checkpoints, and export of checkpoints as safetensors files.
//
// Import compares names and shapes with the model of the deck, and finds the order of GPT-2's
// matrices. It checks a tied head and that all values are finite, then writes a checkpoint of
// step 0. Export verifies the checkpoint first. Called by `trireme import` and `trireme export`;
// both run on one rank and hold all tensors in memory.
#include "trireme/checkpoint/weights/import_export.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/checkpoint/weights/safetensors.hpp"
#include "trireme/io/file.hpp"
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
  for (const parallel::ParameterList::Entry& entry : expected.entries())
    if (entry.spec.tied && expected.find(head_name) < 0) return entry.spec.name;
  return "";
}

/// Returns whether files may hold this tensor of a model transposed: the matrices of GPT-2's
/// blocks.
bool is_block_matrix(const parallel::ParameterSpec& spec) {
  return spec.name.starts_with("h.") && spec.shape.rank() == 2;
}

Shape transposed(const Shape& shape) { return {shape[1], shape[0]}; }

/// Returns the order of the matrices of GPT-2's blocks, from the shapes of those that are not
/// square. Throws InputError if they have both orders, or if all that are there are square.
FileMatrixOrder find_matrix_order(const WeightFiles& weights,
                                  const parallel::ParameterList& expected) {
  std::string linear, conv1d, square;  // an example of each
  for (const parallel::ParameterList::Entry& entry : expected.entries()) {
    const auto found = weights.tensors().find(entry.spec.name);
    if (!is_block_matrix(entry.spec) || found == weights.tensors().end()) continue;
    const WeightFiles::Tensor& tensor = found->second;
    const bool is_in_out = tensor.shape == entry.spec.shape;
    if (!is_in_out && !(tensor.shape == transposed(entry.spec.shape))) continue;
    const bool is_square = entry.spec.shape[0] == entry.spec.shape[1];
    (is_square   ? square
     : is_in_out ? conv1d
                 : linear) = fmt::format("{} {}", tensor.location, to_string(tensor.shape));
  }
  validate(linear.empty() || conv1d.empty(),
           "{}: its matrices have two orders: {} is [out, in], and {} is [in, out]; save all of "
           "them in one order",
           weights.path(), linear, conv1d);
  validate(!linear.empty() || !conv1d.empty() || square.empty(),
           "{}: all its matrices are square, as {}, so their order is unknown; give --matrix-order "
           "linear ([out, in], as nanoGPT) or conv1d ([in, out], as GPT-2 of transformers)",
           weights.path(), square);
  return linear.empty() ? FileMatrixOrder::conv1d : FileMatrixOrder::linear;
}

/// Returns the order to read, which is `wanted` unless that is by_shapes.
FileMatrixOrder resolve_matrix_order(const WeightFiles& weights,
                                     const parallel::ParameterList& expected,
                                     FileMatrixOrder wanted) {
  const bool has_matrices =
      std::any_of(expected.entries().begin(), expected.entries().end(),
                  [](const auto& entry) { return is_block_matrix(entry.spec); });
  validate(
      has_matrices || wanted == FileMatrixOrder::by_shapes,
      "--matrix-order is for models with GPT-2's names, and the deck's model has others; leave "
      "it out");
  return wanted == FileMatrixOrder::by_shapes ? find_matrix_order(weights, expected) : wanted;
}

/// Returns the shape that the files must have for a tensor of the model.
Shape shape_in_files(const parallel::ParameterSpec& spec, FileMatrixOrder order) {
  const bool is_transposed = order == FileMatrixOrder::linear && is_block_matrix(spec);
  return is_transposed ? transposed(spec.shape) : spec.shape;
}

/// Returns a matrix [rows, columns] transposed.
std::vector<float> transpose(const std::vector<float>& values, std::int64_t rows,
                             std::int64_t columns) {
  std::vector<float> result(values.size());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      result[static_cast<std::size_t>(column * rows + row)] =
          values[static_cast<std::size_t>(row * columns + column)];
  return result;
}

/// Returns one message for each tensor that is missing, has another shape or is not in the model.
/// Compares the lists of the model and of the files.
std::vector<std::string> find_mismatches(const WeightFiles& weights, FileMatrixOrder order,
                                         const parallel::ParameterList& expected) {
  std::vector<std::string> found;
  for (const parallel::ParameterList::Entry& entry : expected.entries()) {
    const parallel::ParameterSpec& spec = entry.spec;
    const auto tensor = weights.tensors().find(spec.name);
    if (tensor == weights.tensors().end()) {
      found.push_back(fmt::format("{} {} is missing", spec.name, to_string(spec.shape)));
      continue;
    }
    const Shape wanted = shape_in_files(spec, order);
    if (!(tensor->second.shape == wanted))
      found.push_back(fmt::format("{} has shape {}, but the deck's model has {}", spec.name,
                                  to_string(tensor->second.shape), to_string(wanted)));
  }
  const bool tied = !tied_embedding(expected).empty();
  for (const auto& [plain, tensor] : weights.tensors()) {
    if (expected.find(plain) >= 0 || is_ignored(plain, tensor.shape) ||
        (tied && plain == head_name))
      continue;
    found.push_back(fmt::format("{} {} is not in the deck's model", printable(tensor.stored_name),
                                to_string(tensor.shape)));
  }
  return found;
}

/// Checks that the head equals the embedding bit for bit, if the model ties them. Throws
/// InputError.
void check_tied_head(const WeightFiles& weights, const parallel::ParameterList& expected) {
  const std::string embedding = tied_embedding(expected);
  if (embedding.empty() || !weights.tensors().contains(head_name)) return;
  const WeightFiles::Tensor &head = weights.tensors().at(head_name),
                            &table = weights.tensors().at(embedding);
  bool same = head.shape == table.shape;
  if (same) {
    const std::vector<float> a = weights.read_float32(head_name),
                             b = weights.read_float32(embedding);
    same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  validate(same,
           "{} differs from {}, but the deck's model ties them; with model.tie_embeddings = false "
           "both are kept",
           head.location, table.stored_name);
}

}  // namespace

FileMatrixOrder import_weights(const WeightFiles& weights, const parallel::ParameterList& expected,
                               const Info& info, const std::string& checkpoint,
                               FileMatrixOrder wanted) {
  // 1. Compare names and shapes with the model.
  const FileMatrixOrder order = resolve_matrix_order(weights, expected, wanted);
  std::vector<std::string> mismatches = find_mismatches(weights, order, expected);
  const std::size_t count = mismatches.size();
  mismatches.resize(std::min(count, max_named_tensors));
  validate(mismatches.empty(), "{}: {} tensors do not fit the model of the deck{}:\n  {}{}",
           weights.path(), count, weights.hint_for_missing(expected.entries().front().spec.name),
           fmt::join(mismatches, "\n  "), count > max_named_tensors ? "\n  ..." : "");
  check_tied_head(weights, expected);

  // 2. Read all values and check that they are finite.
  std::vector<parallel::ParameterSpec> specs;
  std::vector<std::vector<float>> values;
  for (const parallel::ParameterList::Entry& entry : expected.entries()) {
    const parallel::ParameterSpec& spec = specs.emplace_back(entry.spec);
    // Both files hold rows in file order: nothing to reorder.
    specs.back().inner = parallel::InnerOrder::plain;
    values.push_back(weights.read_float32(spec.name));
    const bool finite = std::all_of(values.back().begin(), values.back().end(),
                                    [](float value) { return std::isfinite(value); });
    validate(finite,
             "{} holds a value that is not finite: nothing can be trained or computed from it",
             weights.tensors().at(spec.name).location);
    if (order == FileMatrixOrder::linear && is_block_matrix(spec))
      values.back() = transpose(values.back(), spec.shape[1], spec.shape[0]);
  }
  // 3. Write the checkpoint.
  std::vector<TensorSlice> slices;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string group = specs[i].role == parallel::Role::weight ? "model/" : "buffers/";
    slices.push_back({group + specs[i].name, &specs[i], 0, specs[i].rows(), values[i].data()});
  }
  // Under a name of its own: another import may write the same checkpoint now.
  io::StagedFile staged(checkpoint, io::unique_suffix());
  write(comm::Communicator(), staged.temporary(), slices, info);
  staged.commit();
  return order;
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
  io::StagedFile staged(file, io::unique_suffix());
  export_safetensors(checkpoint, staged, weights, "");
  staged.commit();
}

void export_safetensors(const std::string& checkpoint, const io::StagedFile& staged,
                        Weights weights, const std::string& prefix) {
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
      if (!entry.path.starts_with(group)) continue;
      const std::string name = entry.path.substr(group.size());
      tensors.push_back(
          {name == head_name ? name : prefix + name, entry.shape, read_tensor(reader, entry.path)});
    }
  }
  validate(!tensors.empty(), "{}: has no tensors in /model", checkpoint);
  write_safetensors(staged, tensors, {{"format", "pt"}});
}

}  // namespace trireme::checkpoint
