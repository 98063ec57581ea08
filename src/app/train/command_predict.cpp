// SPDX-License-Identifier: Apache-2.0
//
// `trireme predict`: the most probable classes of images, or what a model answers for the samples
// of HDF5 files, on one process.
//
// With --out the inputs are HDF5 files, folders or patterns: the file for the answers must not be
// one of them, now or the next time.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "answer_options.hpp"
#include "app/commands.hpp"
#include "app/files/weights_option.hpp"
#include "predictions_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/arrays/array_files.hpp"
#include "trireme/data/arrays/array_form.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/inference/predict.hpp"
#include "trireme/train/inference/predict_arrays.hpp"

namespace trireme::app {
namespace {

struct PredictOptions {
  train::PredictRequest request;
  std::string out;  ///< the file for the answers to samples of HDF5 files; empty: images
  bool overwrites = false, json = false;
};

void print_classes(const std::string& image, const std::vector<train::ClassProbability>& classes) {
  fmt::print("{}\n", printable(image));
  for (const train::ClassProbability& one : classes)
    fmt::print("{:>9.3f} %  {}\n", 100 * one.probability, printable(one.name));
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const std::string& image,
                               const std::vector<train::ClassProbability>& classes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const train::ClassProbability& one : classes)
    list.push_back({{"class", one.name}, {"label", one.label}, {"probability", one.probability}});
  return {{"image", image}, {"classes", list}};
}

/// Throws InputError if the file of --out is read with an input, or would be the next time.
void validate_no_input(const std::string& out, const std::string& place) {
  std::error_code ignored;
  for (const std::string& path : data::array_paths(place))
    validate(!std::filesystem::equivalent(path, out, ignored),
             "--out {}: is the input {}; name another file", out, path);
  validate(!data::takes_array_file(place, out),
           "--out {}: would be read with the input {} the next time; name a file in another folder",
           out, place);
}

void validate_options(const PredictOptions& options, const std::vector<std::string>& given) {
  const auto is_given = [&](const char* option) {
    return std::find(given.begin(), given.end(), option) != given.end();
  };
  const bool writes = is_given("--out");
  validate(writes || !options.overwrites,
           "--overwrite is about the file of --out; add --out FILE.h5");
  for (const char* option : {"--resize", "--json"})
    validate(!writes || !is_given(option),
             "{} is about images, and not about HDF5 files (--out); leave the option out", option);
  for (const std::string& name : options.request.images) {
    validate(writes || !data::is_array_file_name(name),
             "{}: is no JPEG or PNG file; for the samples of HDF5 files name a file for what the "
             "model answers: --out FILE.h5",
             name);
    if (writes) validate_no_input(options.out, name);
  }
  if (writes) validate_predictions_file("--out", options.out, options.overwrites);
}

/// Applies the model to samples of HDF5 files.
void predict_files(const PredictOptions& options, const std::vector<std::string>& given, Log& log) {
  const train::PredictRequest& request = options.request;
  const train::PredictionOptions kept{.top = request.top, .targets = false};
  PredictionsInfo info;
  info.option = "--out";
  info.checkpoint = request.checkpoint;
  info.flips = request.flips;
  data::TargetOptions target;
  train::PredictionRows rows;
  const comm::Communicator alone;
  std::optional<PredictionsFile> file;
  train::predict_arrays(
      {request.checkpoint, request.images, request.flips, request.weights,
       [&](const Answer& answer) { validate_answer_options(answer, given); }},
      log,
      [&](const train::ArrayPrediction& found) {
        info.files = found.files;
        for (const auto& each : found.files) info.samples += each.samples;
        target = found.target;
        info.answer = &target.answer();
        info.outputs = found.outputs;
        info.classes = found.classes;
        info.deck = found.deck;
        info.checkpoint_digest = found.checkpoint_digest;
        file.emplace(alone, options.out, info, kept);
      },
      [&](const train::EvaluatedRows& some) {
        train::append(rows, some, kept, target);
        if (train::bytes_of(rows) < max_kept_answers) return;
        file->write(rows);
        rows = {};
      });
  file->write(rows);
  file->publish();
  fmt::print("{}: {} of {}\n", options.out, counted(info.samples, "sample", "samples"),
             counted(std::ssize(info.files), "file", "files"));
}

ExitCode predict_command(const PredictOptions& options, const std::vector<std::string>& given) {
  validate_options(options, given);
  const KokkosScope kokkos;
  Log log;
  if (!options.out.empty()) {
    predict_files(options, given, log);
    return ExitCode::done;
  }
  nlohmann::ordered_json images = nlohmann::ordered_json::array();
  train::predict(options.request, log, [&](const auto& image, const auto& classes) {
    if (options.json)
      images.push_back(to_json(image, classes));
    else
      print_classes(image, classes);
  });
  const nlohmann::ordered_json object = {{"checkpoint", options.request.checkpoint},
                                         {"images", images}};
  if (options.json)
    fmt::print("{}\n",
               object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return ExitCode::done;
}

}  // namespace

void add_predict(CommandLine& line) {
  Command command =
      line.add("predict", "Classify JPEG and PNG files, or answer for the samples of HDF5 files");
  const auto options = std::make_shared<PredictOptions>();
  train::PredictRequest& request = options->request;
  command
      .option("CHECKPOINT", request.checkpoint,
              "A checkpoint of a model of images, or of samples of HDF5 files")
      .required();
  command
      .option("INPUT", request.images,
              "JPEG and PNG files; with --out HDF5 and netCDF-4 files, folders or patterns, like "
              "those that the model was trained on; they need no targets")
      .required();
  command
      .option("--out", options->out,
              "HDF5 files: write what the model answers for each sample into an HDF5 file")
      .type_name("FILE.h5");
  command.flag("--overwrite", options->overwrites, "With --out: replace the file");
  command.option("--top", request.top, "One class: the number of most probable classes")
      .range(1, std::int64_t{1} << 24)
      .default_shown();
  command.flag(
      "--resize", request.resizes,
      "Images: scale them to cover the size of the model and cut out their center, for a model "
      "whose deck has no data.augment.evaluate");
  command.flag("--flip", request.flips,
               "One class: average the logits of each sample and its mirror image");
  add_weights_option(command, request.weights, "the average where the checkpoint has one");
  command.flag("--json", options->json, "Images: as one JSON object");
  command.footer(
      "Examples:\n  trireme predict runs/photos/checkpoints/best.h5 cat.jpg holiday/*.jpg\n"
      "  trireme predict runs/fields/checkpoints/best.h5 new.h5 --out answers.h5");
  command.set_single_rank_action(
      [options, command] { return predict_command(*options, command.given_options()); });
}

}  // namespace trireme::app
