#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <stdlib.h>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "deck_source.hpp"
#include "stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/data/idx.hpp"
#include "trireme/data/shard_writer.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t usual_shard_bytes = std::int64_t{256} << 20;  // large enough for streaming reads, small enough to be held by a rank

struct ShardCommand {
  std::string format;
  std::vector<std::string> sources;
  std::string out;
  std::int64_t shards = 0;  // 0: by size
  std::string range;
  std::vector<std::string> classes;
  bool overwrite = false;
};

// Samples [begin, end) of the source become `shards` files of nearly equal length.
struct Plan {
  data::ImageSetOptions set;
  std::vector<std::int32_t> labels;  // of samples begin to end
  std::int64_t begin = 0, end = 0, shards = 1;
  std::int64_t class_count = 0;

  std::int64_t samples() const { return end - begin; }
  std::int64_t sample_bytes() const { return set.height * set.width * set.channels; }
  std::int64_t first_of(std::int64_t shard) const { return begin + samples() * shard / shards; }
};

std::int64_t parse_bound(std::string_view text, std::int64_t if_empty, const std::string& range) {
  if (text.empty()) return if_empty;
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  validate(error == std::errc() && rest == text.data() + text.size() && value >= 0, "--range {}: BEGIN:END are meant, as in 0:50000", range);
  return value;
}

void set_range(const std::string& range, std::int64_t available, Plan& plan) {
  plan.end = available;
  if (range.empty()) return;
  const std::size_t colon = range.find(':');
  validate(colon != std::string::npos, "--range {}: BEGIN:END are meant, as in 0:50000", range);
  const std::string_view text = range;
  plan.begin = parse_bound(text.substr(0, colon), 0, range);
  plan.end = parse_bound(text.substr(colon + 1), available, range);
  validate(plan.begin < plan.end && plan.end <= available, "--range {}: the source holds samples 0:{}, and BEGIN is to be below END", range, available);
}

void check_format(const ShardCommand& command) {
  const std::vector<std::string> formats{"idx", "cifar", "folder", "tar", "text", "tokens"};
  if (std::find(formats.begin(), formats.end(), command.format) == formats.end()) {
    const std::string near = nearest(command.format, formats);
    throw InputError(fmt::format("shard: unknown format \"{}\"{}; this version makes shards from idx", command.format,
                                 near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near)));
  }
  validate(command.format == "idx", "shard: format {} is not available in this version; idx (MNIST-style files) is", command.format);
  validate(command.sources.size() == 2, "shard idx: {} files given, where two are meant: IMAGES LABELS", command.sources.size());
}

// The labels are small and every rank takes them whole; of the images only the header is read here.
Plan make_plan(const ShardCommand& command) {
  check_format(command);
  const data::IdxReader images(command.sources[0], 3);
  data::IdxReader labels(command.sources[1], 1);
  validate(images.shape()[0] == labels.shape()[0], "{} holds {} images, but {} holds {} labels: they are not of one set", command.sources[0],
           images.shape()[0], command.sources[1], labels.shape()[0]);
  Plan plan;
  plan.set.height = images.shape()[1];
  plan.set.width = images.shape()[2];
  plan.set.channels = 1;
  plan.set.classes = command.classes;
  set_range(command.range, images.shape()[0], plan);

  std::vector<std::byte> stored(static_cast<std::size_t>(labels.shape()[0]));
  labels.read(stored);
  labels.finish();
  for (std::int64_t i = plan.begin; i < plan.end; ++i) {
    const auto label = static_cast<std::int32_t>(stored[static_cast<std::size_t>(i)]);
    validate(command.classes.empty() || static_cast<std::size_t>(label) < command.classes.size(),
             "{}: label {} of sample {} is past the {} classes of --classes", command.sources[1], label, i, command.classes.size());
    plan.labels.push_back(label);
    plan.class_count = std::max<std::int64_t>(plan.class_count, label + 1);
  }
  if (!command.classes.empty()) plan.class_count = static_cast<std::int64_t>(command.classes.size());

  const std::int64_t bytes = plan.samples() * plan.sample_bytes();
  plan.shards = command.shards > 0 ? command.shards : (bytes + usual_shard_bytes - 1) / usual_shard_bytes;
  validate(plan.shards <= plan.samples(), "--shards {}: there are only {} samples", plan.shards, plan.samples());
  return plan;
}

std::vector<fs::path> shards_in(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".h5") found.push_back(entry->path());
  }
  return found;
}

bool is_shard(const fs::path& path) {
  try {
    return kind_of(path.string()) == StoredKind::shard;
  } catch (const InputError&) {
    return false;
  }
}

/// Makes the folder and, below it, one for the shards under way, which no other run shares; returns the latter's path.
std::string prepare_folder(const ShardCommand& command) {
  std::error_code error;
  fs::create_directories(command.out, error);
  validate(fs::is_directory(command.out), "--out {}: no folder can be made there: {}", command.out, error.message());
  const std::vector<fs::path> there = shards_in(command.out);
  for (const fs::path& file : there) {
    validate(is_shard(file), "--out {}: {} is there and is no shard, so not replaced either; name another folder", command.out,
             file.filename().string());
  }
  validate(there.empty() || command.overwrite, "--out {}: holds {} *.h5 files already; remove them, name another folder, or give --overwrite",
           command.out, there.size());
  std::string staging = command.out + "/.making-XXXXXX";
  const bool made = ::mkdtemp(staging.data()) != nullptr;
  const int reason = errno;
  const bool wrong_path = !made && (reason == EACCES || reason == EROFS || reason == ENAMETOOLONG);
  validate(!wrong_path, "--out {}: cannot be written in: {}", command.out, std::strerror(reason));
  ensure(made, "{}: cannot be made: {}", staging, std::strerror(reason));
  return staging;
}

// Writes the shards of this rank: those whose number leaves `rank` when divided by `ranks`. Returns their bytes.
std::int64_t write_shards(const ShardCommand& command, const Plan& plan, const fs::path& staging, int rank, int ranks) {
  data::IdxReader images(command.sources[0], 3);
  std::vector<std::byte> pixels;
  std::int64_t at = 0, bytes = 0;
  for (std::int64_t shard = rank; shard < plan.shards; shard += ranks) {
    const std::int64_t first = plan.first_of(shard), count = plan.first_of(shard + 1) - first;
    images.skip(first - at);
    pixels.resize(static_cast<std::size_t>(count * plan.sample_bytes()));
    images.read(pixels);
    at = first + count;
    const std::span<const std::int32_t> labels(plan.labels.data() + (first - plan.begin), static_cast<std::size_t>(count));
    bytes += data::write_image_shard((staging / data::shard_file_name(shard)).string(), plan.set, pixels, labels);
  }
  if (rank == 0) {  // one rank reads to the end, so that a source that is damaged further on is noticed
    images.skip(images.shape()[0] - at);
    images.finish();
  }
  return bytes;
}

// The shards appear in the folder once all of them are whole, in the places of old ones; old ones that are left over go last.
void publish(const ShardCommand& command, const Plan& plan, const fs::path& staging) {
  std::vector<fs::path> old = shards_in(command.out);
  for (std::int64_t shard = 0; shard < plan.shards; ++shard) {
    const fs::path place = fs::path(command.out) / data::shard_file_name(shard);
    fs::rename(staging / place.filename(), place);
    std::erase_if(old, [&](const fs::path& file) { return file.filename() == place.filename(); });
  }
  for (const fs::path& file : old)
    if (is_shard(file)) fs::remove(file);
  fs::remove_all(staging);
  io::sync_folder(command.out);
}

ExitCode make_shards(const ShardCommand& command, const comm::Communicator& world) {
  const double began = monotonic_seconds();
  Plan plan;
  comm::together(world, [&] { plan = make_plan(command); });
  std::string folder;
  comm::together(world, [&] {
    if (world.rank() == 0) folder = prepare_folder(command);
  });
  const fs::path staging = world.broadcast(folder, 0);
  std::int64_t bytes = 0;
  try {
    comm::together(world, [&] { bytes = write_shards(command, plan, staging, world.rank(), world.size()); });
    bytes = world.all_reduce(bytes, comm::Reduction::sum);
    comm::together(world, [&] {
      if (world.rank() == 0) publish(command, plan, staging);
    });
  } catch (...) {
    std::error_code ignored;
    if (world.rank() == 0) fs::remove_all(staging, ignored);
    throw;
  }
  if (world.rank() == 0) {
    fmt::print("{}: {} samples of {} x {} x {} (height, width, channels), {} classes, {} shard{}, {}, {:.1f} s\n", command.out, plan.samples(),
               plan.set.height, plan.set.width, plan.set.channels, plan.class_count, plan.shards, plan.shards == 1 ? "" : "s",
               format_bytes(static_cast<double>(bytes)), monotonic_seconds() - began);
  }
  return ExitCode::done;
}

ExitCode shard_command(const ShardCommand& command) {
  comm::Environment environment;
  Log log(environment.world().rank() == 0);
  leave_together(environment, log, [&] { return make_shards(command, environment.world()); });
}

}  // namespace

void add_shard(CLI::App& root, Run& run) {
  CLI::App* shard = root.add_subcommand("shard", "Make a dataset of HDF5 shards");
  const auto command = std::make_shared<ShardCommand>();
  shard->add_option("FORMAT", command->format, "Form of the source: idx (MNIST-style, plain or .gz)")->required();
  shard->add_option("SOURCE", command->sources, "idx: IMAGES LABELS")->required();
  shard->add_option("--out", command->out, "Folder of the shards")->required();
  shard->add_option("--shards", command->shards, "Number of files (default: one for each 256 MiB)")->check(CLI::PositiveNumber);
  shard->add_option("--range", command->range, "Only samples BEGIN:END of the source (END not included)");
  shard->add_option("--classes", command->classes, "Names of the classes, separated by commas")->delimiter(',');
  shard->add_flag("--overwrite", command->overwrite, "Replace the shards that the folder holds");
  shard->footer(
      "Example, the last 10,000 of 60,000 images kept for validation:\n"
      "  trireme shard idx train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --range 0:50000 --out data/fashion/train\n"
      "  trireme shard idx train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --range 50000:60000 --out data/fashion/validation\n"
      "Under mpirun each rank writes its share of the shards (--shards).");
  shard->callback([command, &run] { run = [command] { return shard_command(*command); }; });
}

}  // namespace trireme::app
