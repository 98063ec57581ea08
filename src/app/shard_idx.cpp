// `trireme shard idx`: image datasets from idx files (MNIST-style, plain or .gz).
//
// Every rank reads the headers and all labels and makes the same plan. Rank r writes the shards r,
// r + ranks, ..., and skips the images between them. Shards that a killed run has sealed are kept.
// Rank 0 reads to the end, so that damage after its last shard is found.
#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <vector>

#include "shard_command.hpp"
#include "shard_folder.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/idx.hpp"
#include "trireme/data/shard_writer.hpp"

namespace trireme::app {
namespace {

// Samples [begin, end) of the source become `shards` files of nearly equal length.
struct Plan {
  data::ImageSetOptions set;
  std::vector<std::int32_t> labels;  // labels of samples [begin, end)
  std::int64_t begin = 0, end = 0, shards = 1;
  std::int64_t class_count = 0;

  std::int64_t samples() const { return end - begin; }
  std::int64_t sample_bytes() const { return set.height * set.width * set.channels; }
  std::int64_t first_of(std::int64_t shard) const { return begin + samples() * shard / shards; }
};

/// Returns a bound of --range, or `if_empty`. Throws InputError.
std::int64_t parse_bound(std::string_view text, std::int64_t if_empty, const std::string& range) {
  if (text.empty()) return if_empty;
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  validate(error == std::errc() && rest == text.data() + text.size() && value >= 0,
           "--range {}: must be BEGIN:END, as in 0:50000", range);
  return value;
}

/// Sets the range of the plan from --range. Throws InputError if it does not fit the source.
void set_range(const std::string& range, std::int64_t available, Plan& plan) {
  plan.end = available;
  if (range.empty()) return;
  const std::size_t colon = range.find(':');
  validate(colon != std::string::npos, "--range {}: must be BEGIN:END, as in 0:50000", range);
  const std::string_view text = range;
  plan.begin = parse_bound(text.substr(0, colon), 0, range);
  plan.end = parse_bound(text.substr(colon + 1), available, range);
  validate(plan.begin < plan.end && plan.end <= available,
           "--range {}: the source has samples 0:{}, and BEGIN must be below END", range,
           available);
}

// Reads the headers and all labels, checks them and makes the plan. Every rank does this; labels
// are small. Throws InputError.
Plan make_plan(const ShardCommand& command) {
  validate(command.sources.size() == 2,
           "shard idx: {} files given, but two are needed: IMAGES LABELS", command.sources.size());
  const data::IdxReader images(command.sources[0], data::IdxReader::Items::images);
  data::IdxReader labels(command.sources[1], data::IdxReader::Items::labels);
  validate(images.shape()[0] == labels.shape()[0],
           "{} has {} images, but {} has {} labels: they do not belong together",
           command.sources[0], images.shape()[0], command.sources[1], labels.shape()[0]);
  std::set<std::string> names;
  for (const std::string& name : command.classes) {
    validate(!name.empty(), "--classes: the name of class {} is empty", names.size());
    validate(is_utf8(name), "--classes: the name {} is not UTF-8", printable(name));
    validate(names.insert(name).second, "--classes: {} is named twice", printable(name));
  }
  Plan plan;
  plan.set.height = images.shape()[1];
  plan.set.width = images.shape()[2];
  plan.set.channels = images.shape().size() > 3 ? images.shape()[3] : 1;
  plan.set.classes = command.classes;
  set_range(command.range, images.shape()[0], plan);

  std::vector<std::byte> stored(static_cast<std::size_t>(labels.shape()[0]));
  labels.read(stored);
  labels.finish();
  for (std::int64_t i = plan.begin; i < plan.end; ++i) {
    const auto label = static_cast<std::int32_t>(stored[static_cast<std::size_t>(i)]);
    validate(command.classes.empty() || static_cast<std::size_t>(label) < command.classes.size(),
             "{}: label {} of sample {} is past the {} classes of --classes", command.sources[1],
             label, i, command.classes.size());
    plan.labels.push_back(label);
    plan.class_count = std::max<std::int64_t>(plan.class_count, label + 1);
  }
  if (!command.classes.empty())
    plan.class_count = static_cast<std::int64_t>(command.classes.size());

  plan.shards = number_of_shards(command, plan.samples() * plan.sample_bytes());
  validate(plan.shards <= plan.samples(), "--shards {}: there are only {} samples", plan.shards,
           plan.samples());
  return plan;
}

// Writes the shards of this rank: those with shard % ranks == rank.
WrittenShards write_shards(const ShardCommand& command, const Plan& plan,
                           const std::filesystem::path& staging, int rank, int ranks) {
  data::IdxReader images(command.sources[0], data::IdxReader::Items::images);
  std::vector<std::byte> pixels;
  WrittenShards written;
  std::int64_t at = 0;
  for (std::int64_t shard = rank; shard < plan.shards; shard += ranks) {
    const std::filesystem::path path = staging / data::shard_file_name(shard);
    if (written.keep(path)) continue;
    const std::int64_t first = plan.first_of(shard), count = plan.first_of(shard + 1) - first;
    images.skip(first - at);
    pixels.resize(static_cast<std::size_t>(count * plan.sample_bytes()));
    images.read(pixels);
    at = first + count;
    const std::span<const std::int32_t> labels(plan.labels.data() + (first - plan.begin),
                                               static_cast<std::size_t>(count));
    written.bytes += data::write_image_shard(path.string(), plan.set, pixels, labels);
  }
  // Rank 0 reads to the end, so that damage further on is found.
  if (rank == 0) {
    images.skip(images.shape()[0] - at);
    images.finish();
  }
  return written;
}

}  // namespace

void shard_idx(const ShardCommand& command, const comm::Communicator& world, Log& log) {
  const double began = monotonic_seconds();
  Plan plan;
  comm::together(world, [&] { plan = make_plan(command); });
  ShardFolder out(world, command, "--out", command.out, log);
  WrittenShards written;
  comm::together(world, [&] {
    written = write_shards(command, plan, out.staging(), world.rank(), world.size());
  });
  written.sum_over_ranks(world, command.out, plan.shards, log);
  out.publish();
  if (world.rank() == 0) {
    fmt::print("{}: {} of {} x {} x {} (height, width, channels), {}, {}, {}, {:.1f} s\n",
               command.out, counted(plan.samples(), "sample", "samples"), plan.set.height,
               plan.set.width, plan.set.channels, counted(plan.class_count, "class", "classes"),
               counted(plan.shards, "shard", "shards"),
               format_bytes(static_cast<double>(written.bytes)), monotonic_seconds() - began);
  }
}

}  // namespace trireme::app
