// SPDX-License-Identifier: Apache-2.0
//
// The file of `evaluate --predictions` and of `predict --out`: one HDF5 file that all ranks write
// together.
//
// Order: rank 0 creates a temporary file with all datasets and attributes; every rank opens it and
// writes its samples, in one or several parts, each in rounds of a bounded number of runs; rank 0
// renames the file. A rank has every n-th micro-batch, so its samples are many short runs.
#include "predictions_file.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "app/output_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::app {
namespace {

using io::Hdf5Number;

/// A dataset with one row for each sample, and this rank's rows.
struct Column {
  const char* name;
  Hdf5Number type;
  std::vector<std::int64_t> row;  ///< extents of a row; none: it is one number
  const void* values;
  std::int64_t row_bytes() const {
    return std::accumulate(row.begin(), row.end(), size_of(type), std::multiplies<>());
  }
};

/// Where the samples of this rank come from: the number of the file, and the sample in it.
struct Origins {
  std::vector<std::int32_t> file;
  std::vector<std::int64_t> row;
};

Origins origins_of(const std::vector<std::int64_t>& samples,
                   const std::vector<train::ArrayPrediction::File>& files) {
  std::vector<std::int64_t> ends;
  for (const auto& file : files) ends.push_back((ends.empty() ? 0 : ends.back()) + file.samples);
  Origins origins;
  if (files.empty()) return origins;
  for (const std::int64_t sample : samples) {
    const auto file = std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin();
    origins.file.push_back(static_cast<std::int32_t>(file));
    origins.row.push_back(sample - (file > 0 ? ends[static_cast<std::size_t>(file - 1)] : 0));
  }
  return origins;
}

std::vector<Column> columns_of(const PredictionsInfo& info, const train::PredictionOptions& options,
                               const train::PredictionRows& rows, const Origins& origins) {
  const Answer& answer = *info.answer;
  const AnswerExtents& outputs = info.outputs;
  std::vector<Column> columns;
  const auto add = [&](const char* name, Hdf5Number type, std::vector<std::int64_t> row,
                       const auto& values) {
    columns.push_back({name, type, std::move(row), values.data()});
  };
  add("index", Hdf5Number::int64, {}, rows.index);
  if (!info.files.empty()) {
    add("file", Hdf5Number::int32, {}, origins.file);
    add("row", Hdf5Number::int64, {}, origins.row);
  }
  if (answer.is_tokens()) {
    add("loss", Hdf5Number::float32, {info.context}, rows.loss);
    return columns;
  }
  std::vector<std::int64_t> row;
  if (answer.is_map) row = {outputs.height, outputs.width};
  if (answer.has_float_targets) {
    // A field of one component has no dimension for it.
    if (!answer.is_map || outputs.count > 1) row.push_back(outputs.count);
    if (answer.is_map) {
      add(answer.prediction, Hdf5Number::float32, row, rows.field);
      if (options.targets) add("target", Hdf5Number::float32, row, rows.field_target);
    } else {
      add(answer.prediction, Hdf5Number::float64, row, rows.prediction);
      if (options.targets) add("target", Hdf5Number::float64, row, rows.target);
    }
    return columns;
  }
  if (options.targets) add("label", Hdf5Number::int32, row, rows.label);
  add(answer.prediction, Hdf5Number::int32, row, rows.predicted);
  if (answer.is_map) return columns;
  if (options.targets) add("loss", Hdf5Number::float32, {}, rows.loss);
  const std::int64_t top = std::min(options.top, outputs.count);
  add("top_class", Hdf5Number::int32, {top}, rows.top_class);
  add("top_probability", Hdf5Number::float32, {top}, rows.top_probability);
  if (options.logits) add("logits", Hdf5Number::float32, {outputs.count}, rows.logits);
  return columns;
}

/// Creates datasets and attributes. Called by rank 0.
void lay_out(io::Hdf5File& file, const PredictionsInfo& info, const std::vector<Column>& columns) {
  file.write_attribute("/", "format", std::string(train::predictions_format));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "checkpoint", info.checkpoint);
  file.write_attribute("/", "checkpoint_digest", fmt::format("{:016x}", info.checkpoint_digest));
  if (!info.split.empty()) file.write_attribute("/", "split", info.split);
  file.write_attribute("/", "flip", std::int64_t{info.flips});
  file.write_attribute("/", "deck", info.deck);
  if (!info.classes.empty()) file.write_strings("classes", info.classes);
  std::vector<std::string> paths;
  for (const auto& from : info.files) paths.push_back(from.path);
  if (!paths.empty()) file.write_strings("files", paths);
  for (const Column& column : columns) {
    std::vector<std::int64_t> shape{info.samples};
    shape.insert(shape.end(), column.row.begin(), column.row.end());
    file.create_dataset(column.name, column.type, shape);
  }
}

/// Writes this rank's rows of one dataset. Collective; a rank without rows left takes part with an
/// empty selection.
void write_column(const comm::Communicator& world, const io::Hdf5File& file, const Column& column,
                  const std::vector<std::pair<std::int64_t, std::int64_t>>& runs) {
  constexpr std::int64_t runs_per_round = 256;  // HDF5 slows down with the runs of a selection.
  const std::int64_t rounds = world.all_reduce(
      (std::ssize(runs) + runs_per_round - 1) / runs_per_round, comm::Reduction::max);
  std::optional<io::Hdf5Dataset> dataset;
  comm::together(world, [&] { dataset.emplace(file.dataset(column.name)); });
  const auto* values = static_cast<const std::byte*>(column.values);
  const double no_values = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    std::vector<io::Hdf5Box> boxes;
    std::int64_t rows = 0;
    for (std::int64_t i = round * runs_per_round;
         i < std::min<std::int64_t>(std::ssize(runs), (round + 1) * runs_per_round); ++i) {
      const auto [first, count] = runs[static_cast<std::size_t>(i)];
      io::Hdf5Box& box = boxes.emplace_back(io::Hdf5Box{{first}, {count}});
      box.start.insert(box.start.end(), column.row.size(), 0);
      box.count.insert(box.count.end(), column.row.begin(), column.row.end());
      rows += count;
    }
    comm::together(world, [&] {
      dataset->write(boxes, column.type,
                     boxes.empty() ? &no_values : static_cast<const void*>(values));
    });
    values += rows * column.row_bytes();
  }
}

}  // namespace

void validate_predictions_file(const char* option, const std::string& path, bool overwrites) {
  std::error_code ignored;
  validate(overwrites || !std::filesystem::is_regular_file(path, ignored),
           "{} {}: exists; name another file, or add --overwrite to replace it", option, path);
  validate_output(option, path, OutputForm::hdf5);
  if (!std::filesystem::is_regular_file(path, ignored) || std::filesystem::file_size(path) == 0)
    return;
  const io::Hdf5Index file = io::index_hdf5(path);
  validate(file.has_attribute("/", "format") &&
               file.attribute_string("/", "format") == train::predictions_format,
           "{} {}: exists and holds no predictions, so it is not replaced; name another file",
           option, path);
}

PredictionsFile::PredictionsFile(const comm::Communicator& world, const std::string& path,
                                 PredictionsInfo info, const train::PredictionOptions& options)
    : world_(world), info_(std::move(info)), options_(options) {
  // Rank 0 lays out the file, and writes alone if it is the only one.
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    staged_ =
        std::make_unique<io::StagedFile>(output_target(info_.option, path), io::unique_suffix());
    file_ = std::make_unique<io::Hdf5File>(io::Hdf5File::create(staged_->temporary(), {}));
    lay_out(*file_, info_, columns_of(info_, options_, {}, {}));
    if (world.size() > 1) close();
  });
  temporary_ = world.broadcast(staged_ ? staged_->temporary() : "", 0);
}

PredictionsFile::~PredictionsFile() = default;

void PredictionsFile::write(const train::PredictionRows& mine) {
  const Origins origins = origins_of(mine.index, info_.files);
  const std::vector<std::pair<std::int64_t, std::int64_t>> runs = train::runs_of(mine.index);
  const bool has_others = world_.size() > 1;
  if (has_others)
    comm::together(world_, [&] {
      file_ = std::make_unique<io::Hdf5File>(
          io::Hdf5File::open_to_write(temporary_, world_.mpi_handle()));
    });
  for (const Column& column : columns_of(info_, options_, mine, origins))
    write_column(world_, *file_, column, runs);
  if (has_others) comm::together(world_, [&] { close(); });
}

void PredictionsFile::close() {
  file_->close();
  file_.reset();
}

void PredictionsFile::publish() {
  comm::together(world_, [&] {
    if (file_) close();
  });
  comm::together(world_, [&] {
    if (staged_) staged_->commit();
  });
}

}  // namespace trireme::app
