// `trireme export`: writes a checkpoint's weights as a safetensors file. The work is in
// src/checkpoint.
#include <memory>
#include <string>

#include <fmt/format.h>

#include "commands.hpp"
#include "stored_file.hpp"
#include "trireme/checkpoint/import_export.hpp"
#include "weights_option.hpp"

namespace trireme::app {
namespace {

struct ExportOptions {
  std::string checkpoint, file;
  bool overwrite = false;
  checkpoint::Weights weights = checkpoint::Weights::model;
};

ExitCode export_command(const ExportOptions& options) {
  const std::string target = check_output(options.file, {options.checkpoint}, options.overwrite);
  checkpoint::export_safetensors(options.checkpoint, target, options.weights);
  fmt::print("{} written\n", options.file);
  return ExitCode::done;
}

}  // namespace

void add_export(CommandLine& line) {
  Command command = line.add(
      "export", "Write weights and running statistics of a checkpoint as a safetensors file");
  const auto options = std::make_shared<ExportOptions>();
  command.option("CHECKPOINT", options->checkpoint, "The checkpoint; it is verified first")
      .required();
  command.option("--out", options->file, "The .safetensors file to write")
      .type_name("FILE.safetensors")
      .required();
  command.flag("--overwrite", options->overwrite, "Replace an existing file");
  add_weights_option(command, options->weights, "model");
  command.footer(
      "Example:\n  trireme export runs/fashion/checkpoints/best.h5 --out fashion.safetensors");
  command.set_single_rank_action([options] { return export_command(*options); });
}

}  // namespace trireme::app
