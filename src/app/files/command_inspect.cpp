// SPDX-License-Identifier: Apache-2.0
//
// `trireme inspect`: describes a shard, a dataset, a file of another program, a checkpoint, a
// folder of checkpoints or a run folder.
//
// describe() finds the kind of the path and builds the JSON object for --json and the text for
// people. Runs on one process. A single file is described without reading tensor values, except for
// --digest. In a folder of checkpoints every byte of the newest one is checked.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "account_report.hpp"
#include "app/commands.hpp"
#include "array_report.hpp"
#include "stored_file.hpp"
#include "trireme/base/batch_job.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/data/arrays/array_description.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/io/seal.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/train/run/job_time.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string path;
  bool json = false, digest = false, sacct = false;
};

Json extents_of(const Shape& shape) {
  return std::vector<std::int64_t>(shape.begin(), shape.end());
}

Json describe_checkpoint(const std::string& path, const checkpoint::Contents& contents) {
  const checkpoint::Info& info = contents.info;
  const std::string seal = io::check_seal(path, io::SealCheck::head);
  Json json{{"kind", "checkpoint"},
            {"path", path},
            {"file_bytes", fs::file_size(path)},
            {"sealed", contents.sealed},
            {"damage", seal.empty() || seal == "no seal" ? Json(nullptr) : Json(seal)},
            {"step", info.step},
            {"epoch", info.epoch},
            {"epoch_samples", info.epoch_samples},
            {"samples", info.samples},
            {"updates", info.updates},
            {"written_by", info.written_by.empty() ? Json(nullptr) : Json(info.written_by)}};
  std::int64_t elements = 0, weights = 0;
  Json tensors = Json::object();
  // Paths are unique. operator[] would compare each with all before it.
  auto& entries = tensors.get_ref<Json::object_t&>();
  entries.reserve(contents.tensors.size());
  for (const checkpoint::Contents::Entry& entry : contents.tensors) {
    elements += entry.shape.elements();
    if (entry.path.starts_with("model/")) weights += entry.shape.elements();
    Json tensor{{"shape", extents_of(entry.shape)}};
    if (entry.has_digest) tensor["digest"] = fmt::format("{:016x}", entry.digest);
    entries.emplace_back(entry.path, std::move(tensor));
  }
  json["weights"] = weights;
  json["tensor_bytes"] = 4 * elements;
  Json state = Json::object();
  for (const auto& [key, value] : info.state)
    std::visit([&](const auto& held) { state[key] = held; }, value);
  json["state"] = state;
  json["classes"] = info.classes;
  json["deck"] = info.deck;
  json["tensors"] = tensors;
  return json;
}

std::string checkpoint_text(const Json& json) {
  const std::string seal =
      json["damage"].is_string()   ? "damaged: " + json["damage"].get<std::string>()
      : json["sealed"].get<bool>() ? "sealed (`trireme verify` checks every byte)"
                                   : "no seal (made by another program)";
  std::string text = fmt::format("{}: checkpoint, {}, {}\n", json["path"].get<std::string>(),
                                 format_bytes(json["file_bytes"].get<double>()), seal);
  text += fmt::format("  step {}, epoch {} (and {} samples of it), {} samples, {} updates\n",
                      json["step"].get<std::int64_t>(), json["epoch"].get<std::int64_t>(),
                      json["epoch_samples"].get<std::int64_t>(),
                      json["samples"].get<std::int64_t>(), json["updates"].get<std::int64_t>());
  text += fmt::format("  {} tensors, {}; {} weights\n", json["tensors"].size(),
                      format_bytes(json["tensor_bytes"].get<double>()),
                      json["weights"].get<std::int64_t>());
  if (json["written_by"].is_string())
    text +=
        fmt::format("  written by {}\n", printable(json["written_by"].get<std::string>(), 2000));
  if (!json["classes"].empty()) text += fmt::format("  {} classes\n", json["classes"].size());
  for (const auto& [key, value] : json["state"].items())
    text += fmt::format("  state {} = {}\n", printable(key),
                        value.dump(-1, ' ', true, Json::error_handler_t::replace));
  for (const auto& [name, tensor] : json["tensors"].items())
    text += fmt::format("  {} {}\n", printable(name), tensor["shape"].dump());
  return text;
}

void describe_vocabulary(Json& json, std::int64_t vocabulary, std::int64_t documents,
                         const std::string& tokenizer, std::int64_t end_of_text) {
  json["vocabulary"] = vocabulary;
  json["documents"] = documents;
  json["tokenizer"] = tokenizer.empty() ? Json(nullptr) : Json(tokenizer);
  json["end_of_text"] = end_of_text < 0 ? Json(nullptr) : Json(end_of_text);
}

/// Returns kind and extents of targets that are no classes of samples.
Json describe_target(const data::StoredTarget& target) {
  Json json{{"kind", answer_of(target.kind).word}, {"count", target.extents.count}};
  if (target.extents.is_map()) {
    json["height"] = target.extents.height;
    json["width"] = target.extents.width;
  }
  return json;
}

Json describe_shard(const std::string& path, const data::ShardDescription& shard) {
  Json json{{"kind", "shard"},
            {"path", path},
            {"holds", data::to_string(shard.kind)},
            {"version", shard.version},
            {"samples", shard.samples}};
  if (shard.kind == data::DatasetKind::images) {
    json["shape"] = {shard.height, shard.width, shard.channels};
    json["pixel_type"] = to_string(shard.pixel_type);
  }
  if (!shard.target.is_one_class()) json["target"] = describe_target(shard.target);
  if (shard.kind == data::DatasetKind::tokens) {
    json["tokens"] = shard.samples;
    // The number of samples depends on the context of a model.
    json.erase("samples");
    json["token_bytes"] = shard.token_bytes;
    describe_vocabulary(json, shard.vocabulary, shard.documents, shard.tokenizer,
                        shard.end_of_text);
  } else {
    json["classes"] = shard.classes;
  }
  json["storage"] = shard.storage;
  json["checksums"] = shard.checksums;
  json["sealed"] = shard.sealed;
  json["file_bytes"] = shard.file_bytes;
  return json;
}

Json describe_dataset(const std::string& path) {
  data::SampleForm form;
  form.target_use = data::TargetUse::of_shards;
  data::DatasetIndex index = data::index_dataset(path, form);
  std::vector<std::int64_t> rows;
  for (const data::ShardIndex& shard : index.shards) rows.push_back(shard.samples().shape[0]);
  const data::Dataset dataset(std::move(index), form);
  const data::DatasetInfo& info = dataset.info();
  Json json{{"kind", "dataset"}, {"path", path}, {"holds", data::to_string(info.kind)}};
  if (info.kind == data::DatasetKind::tokens) {
    json["tokens"] = info.tokens;
    describe_vocabulary(json, info.vocabulary, info.documents, info.tokenizer, info.end_of_text);
    json["shards"] = Json::array();
    for (std::size_t i = 0; i < info.shard_names.size(); ++i)
      json["shards"].push_back({{"name", info.shard_names[i]}, {"tokens", rows[i]}});
    return json;
  }
  json["samples"] = info.samples;
  if (info.kind == data::DatasetKind::images) {
    json["shape"] = {info.height, info.width, info.channels};
    json["pixel_type"] = to_string(info.pixel_type);
  }
  if (info.target_kind != AnswerKind::one_class) {
    json["target"] = describe_target({info.target_kind, info.target});
  } else {
    json["class_count"] = info.target.count;
    json["classes"] = info.classes;
  }
  json["shards"] = Json::array();
  for (std::size_t i = 0; i < info.shard_names.size(); ++i)
    json["shards"].push_back({{"name", info.shard_names[i]}, {"samples", info.shard_samples[i]}});
  return json;
}

std::string count_of_shards(const Json& json) {
  return counted(static_cast<std::int64_t>(json["shards"].size()), "shard", "shards");
}

std::string token_set_text(const Json& json) {
  std::string text =
      fmt::format("{}: dataset of tokens, {} of vocabulary {} in {}",
                  json["path"].get<std::string>(), json["tokens"].get<std::int64_t>(),
                  json["vocabulary"].get<std::int64_t>(), count_of_shards(json));
  if (json["documents"] > 0)
    text += ", " + counted(json["documents"].get<std::int64_t>(), "document", "documents");
  if (json["tokenizer"].is_string())
    text += fmt::format(", tokenizer {}", printable(json["tokenizer"].get<std::string>()));
  if (json["end_of_text"].is_number())
    text += fmt::format(", documents end with token {}", json["end_of_text"].get<std::int64_t>());
  text += "\n";
  for (const Json& shard : json["shards"])
    text += fmt::format("  {}: {}\n", printable(shard["name"].get<std::string>()),
                        counted(shard["tokens"].get<std::int64_t>(), "token", "tokens"));
  return text;
}

/// Returns the classes of a dataset, or its other targets, in words.
std::string answers_in_words(const Json& json) {
  if (!json.contains("target"))
    return counted(json["class_count"].get<std::int64_t>(), "class", "classes");
  const Json& target = json["target"];
  const auto answer = std::ranges::find_if(
      target_answers(), [&](const Answer& one) { return target["kind"] == one.word; });
  return "targets: " + data::to_text(data::StoredTarget{answer->kind,
                                                        {target["count"].get<std::int64_t>(),
                                                         target.value("height", std::int64_t{0}),
                                                         target.value("width", std::int64_t{0})}});
}

std::string dataset_text(const Json& json) {
  if (json.contains("tokens")) return token_set_text(json);
  std::string text = fmt::format("{}: dataset of {}, {} {} in {}, {}\n",
                                 json["path"].get<std::string>(), json["holds"].get<std::string>(),
                                 counted(json["samples"].get<std::int64_t>(), "sample", "samples"),
                                 json.contains("shape") ? json["shape"].dump() : "of any size",
                                 count_of_shards(json), answers_in_words(json));
  for (const Json& shard : json["shards"])
    text += fmt::format("  {}: {}\n", printable(shard["name"].get<std::string>()),
                        counted(shard["samples"].get<std::int64_t>(), "sample", "samples"));
  return text;
}

/// Runs `body` and adds its InputError to the damaged files of `json`, so that the rest is shown.
template <class Body>
void note_damage(Json& json, const std::string& path, Body&& body) {
  try {
    body();
  } catch (const InputError& error) {
    json["damaged"].push_back({{"path", path}, {"why", error.what()}});
  }
}

/// Adds the last valid row of each kind in metrics.jsonl, the exit record and the account.
void describe_records(Json& json, const monitor::RunFolder& folder) {
  // Everybody can write kinds; the program has about ten.
  constexpr std::size_t max_kinds = 64;
  Json last = Json::object();  // kind -> line, then its row
  monitor::AccountReader account;
  note_damage(json, folder.metrics(), [&] {
    monitor::MetricsReader row = folder.read_metrics(monitor::AccountReader::keys());
    while (row.next()) {
      account.add(row);
      if (!row["kind"].is_string()) continue;
      const auto& name = row["kind"].get_ref<const std::string&>();
      if (last.size() < max_kinds || last.contains(name)) last[name] = row.line();
    }
    if (const std::string skipped = row.skipped(); !skipped.empty())
      json["damaged"].push_back({{"path", folder.metrics()}, {"why", skipped}});
  });
  for (Json& row : last) row = Json::parse(row.get_ref<const std::string&>());
  json["metrics"] = last;
  std::optional<monitor::ExitTimes> exit;
  note_damage(json, folder.exit_record(), [&] {
    const std::optional<Json> record = folder.read_exit_record();
    if (!record) return;
    json["exit"] = *record;
    exit = monitor::RunFolder::times_of(*record);
  });
  if (const auto found = account.result(exit)) json["account"] = to_json(*found);
}

/// Adds the checkpoints of a folder to `json`; the folder may be missing. Reads every byte of the
/// newest one.
void describe_checkpoints(Json& json, const std::string& folder) {
  json["newest"] = nullptr;
  json["checkpoints"] = Json::array();
  json["damaged"] = Json::array();
  if (!fs::is_directory(folder)) return;
  checkpoint::CheckpointChoice choice;
  note_damage(json, folder,
              [&] { choice = checkpoint::find_newest(comm::Communicator(), folder); });
  if (!choice.path.empty()) json["newest"] = {{"path", choice.path}, {"step", choice.step}};
  for (const std::string& file : h5_files(folder))
    json["checkpoints"].push_back(fs::path(file).filename().string());
  for (const checkpoint::RejectedFile& file : choice.rejected)
    json["damaged"].push_back({{"path", file.path}, {"why", file.reason}});
}

/// Asks Slurm for the energy of the jobs of a run.
Json energy_of_jobs(const monitor::RunFolder& folder) {
  constexpr std::size_t max_jobs = 1000;
  std::set<std::string> jobs;
  for (const std::string& job : folder.read_jobs())
    if (job.starts_with("slurm ")) jobs.insert(job);
  validate(jobs.size() <= max_jobs, "--sacct: {} has {} Slurm jobs, more than {}", folder.path(),
           jobs.size(), max_jobs);
  double joules = 0;
  std::int64_t known = 0;
  for (const std::string& text : jobs) {
    const std::optional<BatchJob> job = BatchJob::parse(text);
    const std::optional<double> found = job ? train::query_job_energy(*job) : std::nullopt;
    joules += found.value_or(0);
    known += found ? 1 : 0;
  }
  return {
      {"joules", known > 0 ? Json(joules) : Json()}, {"known_jobs", known}, {"jobs", jobs.size()}};
}

Json describe_run(const std::string& path) {
  Json json{{"kind", "run"}, {"path", path}};
  const monitor::RunFolder folder(path);
  describe_checkpoints(json, folder.checkpoints());
  describe_records(json, folder);
  return json;
}

/// Returns the text for a run folder or a folder of checkpoints.
std::string run_text(const Json& json) {
  std::string text = fmt::format("{}: {}\n", json["path"].get<std::string>(),
                                 json["kind"] == "run" ? "run folder" : "folder of checkpoints");
  if (json["newest"].is_null()) {
    text += "  no valid checkpoint step_NUMBER.h5\n";
  } else {
    text +=
        fmt::format("  newest checkpoint {} (step {})\n", json["newest"]["path"].get<std::string>(),
                    json["newest"]["step"].get<std::int64_t>());
  }
  for (const Json& name : json["checkpoints"])
    text += fmt::format("  {}\n", printable(name.get<std::string>()));
  for (const Json& file : json["damaged"])
    text += fmt::format("  damaged: {}: {}\n", file["path"].get<std::string>(),
                        file["why"].get<std::string>());
  if (!json.contains("metrics")) return text;
  for (const auto& [kind, row] : json["metrics"].items())
    text += fmt::format("  last {}: {}\n", printable(kind), row.dump());
  if (json.contains("account")) text += account_text(json["account"]);
  if (json.contains("exit")) text += fmt::format("  last exit: {}\n", json["exit"].dump());
  return text;
}

/// The description of a path in both forms.
struct Description {
  Json json;
  std::string text;
};

/// Describes a single file.
void describe_file(const std::string& path, Description& description) {
  io::Hdf5Index file = io::index_hdf5(path);
  if (!is_ours(file)) {
    const data::ArrayFileDescription arrays = data::describe_array_file(file);
    description.json = arrays_json(path, arrays);
    description.text = data::to_text(path, arrays);
  } else if (kind_of(file) == StoredKind::predictions) {
    const data::ArrayFileDescription arrays = data::describe_array_file(file);
    description.json = predictions_json(file, arrays);
    description.text = predictions_text(file, arrays);
  } else if (kind_of(file) == StoredKind::shard) {
    const data::ShardDescription shard = data::describe_shard(std::move(file));
    description.json = describe_shard(path, shard);
    description.text = data::to_text(shard);
  } else {
    description.json = describe_checkpoint(path, checkpoint::read_contents(file));
    description.text = checkpoint_text(description.json);
  }
}

void describe_checkpoint_folder(const std::string& path, Description& description) {
  description.json = {{"kind", "checkpoints"}, {"path", path}};
  describe_checkpoints(description.json, path);
  description.text = run_text(description.json);
}

/// Describes a folder of checkpoints or of shards. A folder whose names do not tell is first taken
/// for a dataset.
void describe_folder(const std::string& path, Description& description) {
  if (has_checkpoint_names(path)) return describe_checkpoint_folder(path, description);
  try {
    description.json = describe_dataset(path);
    description.text = dataset_text(description.json);
  } catch (const InputError&) {
    if (!holds_checkpoint(path)) throw;
    describe_checkpoint_folder(path, description);
  }
}

/// Finds the kind of a path and describes it. Throws InputError if it is none of them.
Description describe(const std::string& path) {
  validate(fs::exists(path), "{}: no such file or folder", path);
  Description description;
  if (fs::is_directory(path) && monitor::RunFolder(path).has_run()) {
    description.json = describe_run(path);
    description.text = run_text(description.json);
  } else if (fs::is_directory(path)) {
    describe_folder(path, description);
  } else {
    describe_file(path, description);
  }
  return description;
}

ExitCode inspect_command(const InspectOptions& options) {
  std::string digest;
  if (options.digest) {
    const io::Hdf5Reader reader(io::index_hdf5(options.path));
    const std::vector<checkpoint::Contents::Entry> tensors = checkpoint::compute_digests(reader);
    const std::string defect =
        checkpoint::compare_digests(checkpoint::read_contents(reader.index()), tensors);
    validate(defect.empty(), "{}: {}", options.path, defect);
    digest = fmt::format("{:016x}", checkpoint::combined_digest(tensors));
    if (!options.json)
      fmt::print("{}: digest of {} tensors: {}\n", options.path, tensors.size(), digest);
  }
  if (options.digest && !options.json) return ExitCode::done;
  Description description = describe(options.path);
  if (options.sacct) {
    validate(description.json["kind"] == "run", "--sacct: {} is no run folder", options.path);
    const Json energy = energy_of_jobs(monitor::RunFolder(options.path));
    description.json["sacct"] = energy;
    description.text += fmt::format(
        "  energy: Slurm {}, of {} of {}\n",
        energy["joules"].is_null() ? "unknown" : format_energy(energy["joules"].get<double>()),
        energy["known_jobs"].get<std::int64_t>(),
        counted(energy["jobs"].get<std::int64_t>(), "job", "jobs"));
  }
  if (options.digest) description.json["digest"] = digest;
  if (options.json)
    // In ASCII: a terminal must not act on names and texts of files.
    description.text = description.json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
  else
    description.text = printable_lines(description.text);
  fmt::print("{}{}", description.text, description.text.ends_with('\n') ? "" : "\n");
  return ExitCode::done;
}

}  // namespace

void add_inspect(CommandLine& line) {
  Command command =
      line.add("inspect",
               "Describe a shard, a dataset, an HDF5 file of another program or of predictions, a "
               "checkpoint, a folder of checkpoints or a run folder");
  const auto options = std::make_shared<InspectOptions>();
  command.option("PATH", options->path, "A file or a folder").required();
  command.flag("--json", options->json, "As one JSON object");
  command.flag("--digest", options->digest,
               "Of a checkpoint: one digest over the values of all tensors, as the last word");
  command.flag("--sacct", options->sacct, "Of a run folder: ask Slurm for the energy of its jobs");
  command.footer(
      "Examples:\n  trireme inspect data/fashion/train\n  trireme inspect --digest "
      "runs/fashion/checkpoints/best.h5");
  command.set_single_rank_action([options] { return inspect_command(*options); });
}

}  // namespace trireme::app
