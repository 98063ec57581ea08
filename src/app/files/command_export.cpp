// SPDX-License-Identifier: Apache-2.0
//
// `trireme export`: writes a checkpoint's weights as a safetensors file, or as a folder that
// Hugging Face's transformers loads.
//
// A folder is written in this order: the model of the stored deck becomes a config.json; the
// outputs are checked; the weights, under the names of transformers (src/checkpoint), and
// config.json are written beside the old files, which they replace. Runs on one process.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/checkpoint/weights/transformers_config.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_lock.hpp"
#include "trireme/io/new_folders.hpp"
#include "trireme/model/family.hpp"
#include "trireme/train/inference/generate.hpp"
#include "weights_option.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string checkpoint, out;
  bool overwrite = false;
  checkpoint::Weights weights = checkpoint::Weights::model;
};

/// A form of files that users expect by the end of the name, and that is not written.
struct OtherForm {
  const char *extension, *name, *advice;
};
constexpr const char* save_with_torch =
    "torch.save(safetensors.torch.load_file(\"NAME.safetensors\"), ...) makes such a file";
constexpr OtherForm other_forms[] = {
    {".pt", "a file of torch.save", save_with_torch},
    {".pth", "a file of torch.save", save_with_torch},
    {".bin", "a file of torch.save", save_with_torch},
    {".ckpt", "a file of torch.save", save_with_torch},
    {".onnx", "an ONNX file", "torch.onnx.export makes it from the model in PyTorch"},
    {".gguf", "a GGUF file", "llama.cpp converts the folder of --out FOLDER/"},
    {".npz", "an archive of NumPy",
     "numpy.savez(..., **safetensors.numpy.load_file(...)) makes it"},
    {".h5", "an HDF5 file", "the checkpoint itself is one"},
};

/// Throws InputError if the name of the output is that of another form.
void refuse_other_form(const std::string& out) {
  std::string extension = fs::path(out).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const OtherForm& form : other_forms)
    validate(extension != form.extension,
             "--out {}: is the name of {}, but export writes safetensors; use --out "
             "{}.safetensors ({})",
             out, form.name, fs::path(out).replace_extension().string(), form.advice);
}

/// Returns the text of config.json for the model of a checkpoint, and sets the prefix of the names
/// of its tensors. Throws InputError if transformers has no such model.
std::string config_of(const std::string& path, std::string& prefix) {
  checkpoint::reject_folder(path);
  const checkpoint::Contents contents = checkpoint::read_contents(path);
  const model::ModelOptions model =
      deck::parse_stored(contents.info.deck, path + ":deck").deck.model;
  const model::Family& family = family_of(model);
  validate(family.transformers_config != nullptr,
           "{}: model.kind = \"{}\", but a folder for transformers holds a language model; write "
           "the tensors alone: --out NAME.safetensors",
           path, family.word);
  try {
    const std::int64_t vocabulary = train::stored_vocabulary(model, contents);
    validate(vocabulary > 0, "{}: has no token embedding in /model", path);
    const TransformersConfig config = family.transformers_config(model, vocabulary);
    const bool is_gpt2 = config.family == TransformersConfig::Family::gpt2;
    prefix = is_gpt2 ? "transformer." : "";
    return checkpoint::to_json(config);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path, error.what()));
  }
}

/// The longest wait for another export into the same folder.
constexpr double max_wait_seconds = 10;

/// Renames weights and config.json into place. A config.json never describes the weights of another
/// model: if it changes, a process that is killed here leaves none.
void commit_folder(io::StagedFile& weights, io::StagedFile& description,
                   const std::string& config) {
  const std::string& path = description.path();
  // Another export may replace the same two files now.
  const auto lock =
      io::try_to_lock_folder(fs::absolute(path).parent_path().string(), max_wait_seconds);
  std::error_code error;
  const bool is_kept =
      fs::file_size(path, error) == config.size() && !error && io::read_text_file(path) == config;
  io::copy_permissions(path, description.temporary());
  if (!is_kept) fs::remove(path, error);
  ensure(is_kept || !fs::exists(path, error), "{}: cannot be removed", path);
  weights.commit();
  description.commit();
}

ExitCode export_folder(const ExportOptions& options) {
  // 1. Describe the model.
  std::string prefix;
  const std::string config = config_of(options.checkpoint, prefix);

  // 2. Check the outputs, and make the folder if it is missing.
  const fs::path folder = options.out;
  reject_address("--out " + options.out, options.out);
  io::NewFolders made;
  std::error_code error;
  made.create_one(folder.parent_path(), error);
  validate_path(error.value(), "--out {}: the folder cannot be made: {}", options.out,
                error.message());
  const auto check = [&](const char* name) {
    return check_output((folder / name).string(), {options.checkpoint}, options.overwrite);
  };
  const std::string weights_file = check("model.safetensors"), config_file = check("config.json");
  validate(!fs::exists(folder / "model.safetensors.index.json", error),
           "--out {}: holds weights in several files, with model.safetensors.index.json; name "
           "another folder",
           options.out);

  // 3. Write beside the old files, then replace them.
  io::StagedFile weights(weights_file, io::unique_suffix()),
      description(config_file, io::unique_suffix());
  checkpoint::export_safetensors(options.checkpoint, weights, options.weights, prefix);
  io::replace_file(description.temporary(), config);
  commit_folder(weights, description, config);
  made.keep();
  fmt::print("{}: model.safetensors and config.json written\n", options.out);
  return ExitCode::done;
}

ExitCode export_command(const ExportOptions& options) {
  if (options.out.ends_with('/')) return export_folder(options);
  std::error_code ignored;
  validate(
      !fs::is_directory(options.out, ignored),
      "--out {0}: is a folder; name a file, or write model.safetensors and config.json into it "
      "by --out {0}/",
      options.out);
  const std::string target = check_output(options.out, {options.checkpoint}, options.overwrite);
  refuse_other_form(options.out);
  checkpoint::export_safetensors(options.checkpoint, target, options.weights);
  fmt::print("{} written\n", options.out);
  return ExitCode::done;
}

}  // namespace

void add_export(CommandLine& line) {
  Command command = line.add(
      "export", "Write weights and running statistics of a checkpoint as a safetensors file");
  const auto options = std::make_shared<ExportOptions>();
  command.option("CHECKPOINT", options->checkpoint, "The checkpoint; it is verified first")
      .required();
  command
      .option("--out", options->out,
              "The .safetensors file to write; or, with a slash at the end, the folder that gets "
              "model.safetensors and config.json for transformers")
      .type_name("FILE.safetensors|FOLDER/")
      .required();
  command.flag("--overwrite", options->overwrite, "Replace an existing file");
  add_weights_option(command, options->weights, "model");
  command.footer(
      "Examples:\n  trireme export runs/fashion/checkpoints/best.h5 --out fashion.safetensors\n"
      "  trireme export runs/bible/checkpoints/best.h5 --out bible/");
  command.set_single_rank_action([options] { return export_command(*options); });
}

}  // namespace trireme::app
