// SPDX-License-Identifier: Apache-2.0
//
// `trireme shard hdf5`: shards of the samples that a deck reads from files of other programs.
//
//   files of a split -> data::Dataset, as the deck describes them in [data.hdf5] and [target]
//                    -> samples unpacked, filled and transformed; targets in units of the data,
//                       read in the order of the files
//                    -> shards, each of them by one rank
//
// A deck reads the shards with its table, which they keep, or without one.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "app/deck_source.hpp"
#include "sample_options.hpp"
#include "shard_command.hpp"
#include "shard_folder.hpp"
#include "shard_rounds.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/permutation.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/arrays/array_files.hpp"
#include "trireme/data/shards/shard_writer.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/train/datasets.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

/// Returns how the samples are read: targets as they are, since the deck of the shards normalizes
/// them.
data::SampleForm stored_form(const deck::Deck& deck) {
  data::SampleForm form{0, {}, deck.data.hdf5, deck.target};
  form.target_use = data::TargetUse::exact;
  return form;
}

/// Returns the files of the split that the command names. Throws InputError if the command cannot
/// be carried out. On rank 0.
std::vector<std::string> files_of_split(const ShardCommand& command, const deck::Deck& deck) {
  const auto folder = deck::folder_of_split(command.split);
  validate(folder != nullptr, "--split {}: is none of train, validation and test",
           printable(command.split));
  const std::string& place = deck.data.*folder;
  validate(!place.empty(), "{}: has no data.{}, which --split names", command.sources[0],
           command.split);
  validate(deck.data.hdf5.is_used(),
           "{}: has no table [data.hdf5], which says how to read the files (trireme inspect FILE "
           "proposes one)",
           command.sources[0]);
  validate_no_data(deck, "--out", command.out, fs::path(command.out) / data::shard_file_name(0));
  if (!command.overwrite) check_target_folder("--out", command.out, false);
  return data::array_paths(place);
}

/// Returns a hash of all that decides the shards, beside the options and files of the command.
std::uint64_t hash_of_form(const ShardCommand& command, const data::SampleForm& form) {
  io::Xxh3 hash;
  std::vector<std::string> words = data::table_lines(form.arrays, form.target);
  words.push_back(command.split);
  words.push_back(fmt::format("{}", form.target.classes));
  for (const std::string& word : words) hash.update(word.c_str(), word.size() + 1);
  return hash.digest();
}

/// The work that all ranks agree on.
struct ArrayPlan {
  SampleRange range;
  std::optional<Permutation> shuffle;
  data::ImageSetOptions set;
  std::int64_t shards = 1;

  std::int64_t samples() const { return range.end - range.begin; }
  std::int64_t first_of(std::int64_t shard) const { return samples() * shard / shards; }
  /// Returns the sample of the set at a position of the shards.
  std::int64_t sample_at(std::int64_t position) const {
    const auto at = static_cast<std::uint64_t>(position);
    return range.begin + (shuffle ? static_cast<std::int64_t>((*shuffle)(at)) : position);
  }
};

/// Makes the plan. `place`: that of the samples. Throws InputError if they do not fit in shards.
ArrayPlan make_array_plan(const ShardCommand& command, const data::DatasetInfo& info,
                          const data::SampleForm& form, const std::vector<std::string>& classes,
                          const std::string& place) {
  ArrayPlan plan{.range = parse_range(command.range, info.samples),
                 .shuffle = {},
                 .set = {.height = info.height,
                         .width = info.width,
                         .channels = info.channels,
                         .classes = classes,
                         .pixel_type = info.pixel_type,
                         .target = {form.target.kind, info.target},
                         .table = data::table_lines(form.arrays, form.target)}};
  plan.set.check_extents(place);
  const std::int64_t samples = plan.samples();
  if (command.shuffle >= 0)
    plan.shuffle.emplace(random_key(static_cast<std::uint64_t>(command.shuffle), "shard"),
                         static_cast<std::uint64_t>(samples));
  const std::int64_t wanted =
      number_of_shards(command, samples * (plan.set.image_bytes() + plan.set.target_bytes()));
  plan.shards = command.shards > 0 ? wanted : std::min(wanted, samples);
  validate(plan.shards <= samples, "--shards {}: there are only {} samples", plan.shards, samples);
  return plan;
}

/// Throws InputError if a sample has none of the named classes. Their numbers are in memory.
void check_labels_of(const data::Dataset& set, const ArrayPlan& plan) {
  const auto classes = std::ssize(plan.set.classes);
  for (std::int64_t sample = plan.range.begin; classes > 0 && sample < plan.range.end; ++sample) {
    std::int32_t label = 0;
    set.read(sample, nullptr, &label);
    validate(label < classes, "--classes: names {}, but sample {} has class {}",
             counted(classes, "class", "classes"), sample, label);
  }
}

/// Reads the samples of shards as they are stored.
class SampleReader {
 public:
  SampleReader(const data::Dataset& set, const ArrayPlan& plan) : set_(set), plan_(plan) {}

  /// Reads images and targets at positions [first, end). Calls `done` after each.
  void read(std::int64_t first, std::int64_t end, const std::function<void()>& done) {
    const auto count = static_cast<std::size_t>(end - first),
               image_bytes = static_cast<std::size_t>(plan_.set.image_bytes()),
               target_bytes = static_cast<std::size_t>(plan_.set.target_bytes());
    images.resize(count * image_bytes);
    targets.resize(count * target_bytes);
    // In the order of the files: a chunk of many samples is then unpacked once.
    std::vector<std::pair<std::int64_t, std::size_t>> order;
    for (std::size_t slot = 0; slot < count; ++slot)
      order.emplace_back(plan_.sample_at(first + static_cast<std::int64_t>(slot)), slot);
    std::sort(order.begin(), order.end());
    for (const auto& [sample, slot] : order) {
      set_.read(sample, images.data() + slot * image_bytes, targets.data() + slot * target_bytes, 0,
                state_);
      done();
    }
  }

  std::vector<std::byte> images, targets;  ///< of the last call

 private:
  const data::Dataset& set_;
  const ArrayPlan& plan_;
  data::ReaderState state_;
};

/// Writes all shards. Collective.
WrittenShards write_array_shards(const ShardCommand& command, const data::Dataset& set,
                                 const ArrayPlan& plan, const fs::path& staging,
                                 const comm::Communicator& world, Log& log) {
  const auto first_of = [&](std::int64_t shard) { return plan.first_of(shard); };
  WritingProgress progress(world, plan.shards, first_of, command.out, log);
  SampleReader reader(set, plan);
  WrittenShards written;
  write_in_rounds(world, plan.shards, [&](std::int64_t shard) {
    const std::int64_t first = plan.first_of(shard), end = plan.first_of(shard + 1);
    const fs::path path = staging / data::shard_file_name(shard);
    if (written.keep(path)) return progress.keep(end - first);
    reader.read(first, end, [&] { progress.add_written(); });
    written.bytes +=
        data::write_image_shard(path.string(), plan.set, reader.images, reader.targets);
  });
  return written;
}

}  // namespace

void shard_arrays(const ShardCommand& given, const comm::Communicator& world, Log& log) {
  const double began = monotonic_seconds();
  ShardCommand command = given;
  validate(command.sources.size() == 1, "shard hdf5: {} decks given; name one",
           command.sources.size());
  const deck::Deck deck =
      read_deck({command.sources[0], command.deck.sets, command.deck.unsets}, world);
  const data::SampleForm form = stored_form(deck);
  std::vector<std::string> classes;
  comm::together(world, [&] {
    classes = read_options(command).classes;
    validate(classes.empty() || form.target.answer().is_one_class(),
             "--classes names classes of samples, but target.kind = \"{}\"; leave it out",
             form.target.answer().word);
    if (world.rank() != 0) return;
    command.further_files = files_of_split(command, deck);
    command.source_identity = hash_of_form(command, form);
  });
  // 1. Describe the files.
  const std::string& place = deck.data.*deck::folder_of_split(command.split);
  const data::Dataset set = with_deck_locations(
      deck, [&] { return train::open_dataset(world, "data." + command.split, place, form); });
  if (classes.empty()) classes = set.info().classes;
  const ArrayPlan plan = make_array_plan(command, set.info(), form, classes, place);
  check_labels_of(set, plan);
  if (plan.shuffle && set.info().chunk_samples > 1 && plan.shards > 1)
    log.warn(
        "--shuffle reads the files once for each of {} shards, since chunks of {} samples are "
        "unpacked as a whole; training shuffles anyway",
        plan.shards, set.info().chunk_samples);
  // 2. Write the shards.
  ShardFolder out(world, command, "--out", command.out, log);
  WrittenShards written = write_array_shards(command, set, plan, out.staging(), world, log);
  written.sum_over_ranks(world, command.out, plan.shards, log);
  out.publish();
  if (world.rank() != 0) return;
  fmt::print("{}: {} of {} x {} x {} (height, width, channels), {}, {}, {}, {}, {:.1f} s\n",
             command.out, counted(plan.samples(), "sample", "samples"), plan.set.height,
             plan.set.width, plan.set.channels, to_string(plan.set.pixel_type),
             data::outputs_in_words(set.info().target, form.target.answer()),
             counted(plan.shards, "shard", "shards"), format_bytes(written.bytes),
             monotonic_seconds() - began);
}

}  // namespace trireme::app
