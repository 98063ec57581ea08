// SPDX-License-Identifier: Apache-2.0
//
// `trireme shard idx|cifar|folder|tar`: image datasets.
//
// 1. Rank 0 catalogs the source (data::ImageCatalog): which images there are, where, and their
//    labels. The others receive the catalog.
// 2. All ranks make the same plan: the catalog, cut by --range and permuted by --shuffle, is cut
//    into shards. So the bytes of a shard depend on no rank, and an image that is skipped only
//    shortens its own shard.
// 3. Compressed sources are decompressed into the staging folder.
// 4. In each round every rank decodes, scales, encodes and writes one shard. Shards that a killed
//    run has sealed are kept. A shard whose images were skipped has a list of them beside it.
// 5. The shards are published, with all skipped images in skipped.csv.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "image_storage.hpp"
#include "sample_options.hpp"
#include "shard_command.hpp"
#include "shard_folder.hpp"
#include "shard_rounds.hpp"
#include "skipped_list.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/permutation.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/shards/shard_writer.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

/// The work that all ranks agree on.
struct Plan {
  data::ImageCatalog catalog;
  data::ImageSetOptions set;  ///< encoded images have no extents
  ImageStorage storage;
  SampleRange range;
  std::optional<Permutation> shuffle;
  std::int64_t class_count = 0;
  /// Positions of the first sample of each shard, in the permuted range, and the end.
  std::vector<std::int64_t> first;

  std::int64_t samples() const { return range.end - range.begin; }
  std::int64_t shards() const { return std::ssize(first) - 1; }
  std::int64_t first_of(std::int64_t shard) const { return first[static_cast<std::size_t>(shard)]; }
  /// Returns the bytes of a sample in the source, or of its pixels.
  std::int64_t source_bytes(std::int64_t position) const {
    if (catalog.coding != data::ImageCoding::file)
      return catalog.height * catalog.width * catalog.channels;
    // The header of an archive may claim any size; larger files are refused.
    const data::CatalogEntry& entry = entry_at(position);
    return entry.problem.empty() && entry.bytes <= data::max_encoded_bytes ? entry.bytes : 0;
  }
  const data::CatalogEntry& entry_at(std::int64_t position) const {
    const auto index = static_cast<std::uint64_t>(position);
    return catalog.entries[static_cast<std::size_t>(range.begin) +
                           static_cast<std::size_t>(shuffle ? (*shuffle)(index) : index)];
  }
};

/// An image that is left out.
struct Skipped {
  std::string place, reason;
};

/// Finds the extents of the shards from the first image that can be read. Throws InputError if none
/// can.
void find_extents(Plan& plan) {
  plan.set.channels = 3;
  if (plan.catalog.coding != data::ImageCoding::file) {
    plan.set.height = plan.catalog.height;
    plan.set.width = plan.catalog.width;
    plan.set.channels = plan.catalog.channels;
  }
  if (plan.storage.extents) {
    plan.set.height = plan.storage.extents->height;
    plan.set.width = plan.storage.extents->width;
  }
  if (plan.set.height > 0) {
    // Pixels of the source have one size, so their scaled size follows without reading one.
    if (plan.storage.shorter > 0) {
      const data::ImageExtents scaled =
          data::scaled_to_shorter({plan.set.height, plan.set.width}, plan.storage.shorter);
      plan.set.height = scaled.height;
      plan.set.width = scaled.width;
    }
    return;
  }
  data::CatalogReader reader(plan.catalog);
  std::optional<Skipped> first;
  for (std::int64_t i = 0; i < plan.samples(); ++i) {
    try {
      const data::Image image = resize(plan.storage, reader.read(plan.entry_at(i)));
      plan.set.height = image.height;
      plan.set.width = image.width;
      return;
    } catch (const InputError& error) {
      if (!first) first = {place_of(plan.catalog, plan.entry_at(i)), error.what()};
    }
  }
  throw InputError(fmt::format("none of the {} images can be used; {}: {}", plan.samples(),
                               first->place, first->reason));
}

/// Makes the plan from a catalog; the same on every rank, except for the extents of `set`.
Plan make_plan(const ShardCommand& command, data::ImageCatalog catalog) {
  Plan plan;
  plan.catalog = std::move(catalog);
  plan.set.classes = plan.catalog.classes;
  plan.storage = parse_storage(command);
  plan.range = parse_range(command.range, std::ssize(plan.catalog.entries));
  if (command.shuffle >= 0)
    plan.shuffle.emplace(random_key(static_cast<std::uint64_t>(command.shuffle), "shard"),
                         static_cast<std::uint64_t>(plan.samples()));
  plan.class_count = std::ssize(plan.set.classes);
  if (plan.class_count == 0)
    for (std::int64_t i = 0; i < plan.samples(); ++i)
      plan.class_count = std::max<std::int64_t>(plan.class_count, plan.entry_at(i).label + 1);
  return plan;
}

/// Makes the catalog and the plan on rank 0, and the same plan on the others. Collective.
Plan share_plan(const ShardCommand& command, const CatalogMaker& catalog_of,
                const comm::Communicator& world, Log& log) {
  Plan plan;
  std::string catalog;
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    // Wrong options are found before the source is read, which may take long.
    const OptionFiles options = read_options(command);
    check_out_is_outside(command);
    // With --overwrite ShardFolder checks it: this opens every shard in the folder.
    if (!command.overwrite) check_target_folder("--out", command.out, false);
    data::ImageCatalog source = catalog_of(command);
    check_storage(parse_storage(command), source);
    const SampleRange range = parse_range(command.range, std::ssize(source.entries));
    data::assign_labels(source, options.classes, options.labels, range.begin, range.end);
    check_classes(source.classes, command.labels.empty()
                                      ? "the classes of " + command.sources.front()
                                      : command.labels);
    if (!source.class_note.empty()) log.info("{}: {}", command.out, source.class_note);
    if (!source.source_warning.empty()) log.warn("{}", source.source_warning);
    if (!source.class_warning.empty()) log.warn("{}: {}", command.out, source.class_warning);
    plan = make_plan(command, std::move(source));
    catalog = to_bytes(plan.catalog);
  });
  catalog = world.broadcast(catalog, 0);
  if (world.rank() != 0) plan = make_plan(command, data::image_catalog_from_bytes(catalog));
  return plan;
}

/// Sets the extents of the images of shards of pixels. Collective.
void settle_extents(const comm::Communicator& world, Plan& plan) {
  std::vector<std::int64_t> extents(3);
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    find_extents(plan);
    extents = {plan.set.height, plan.set.width, plan.set.channels};
  });
  world.all_reduce(extents, comm::Reduction::sum);  // zeros from the other ranks
  plan.set.height = extents[0];
  plan.set.width = extents[1];
  plan.set.channels = extents[2];
}

/// Returns the bytes of all samples in the source.
std::int64_t source_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < plan.samples(); ++i) bytes += plan.source_bytes(i);
  return bytes;
}

/// Returns the first samples of `shards` shards with nearly equal parts of the `bytes` of the
/// source, and the end. Each shard has a sample.
std::vector<std::int64_t> cut_by_bytes(const Plan& plan, std::int64_t shards, std::int64_t bytes) {
  const std::int64_t samples = plan.samples();
  std::vector<std::int64_t> first{0};
  std::int64_t bytes_before = 0;
  for (std::int64_t i = 0; i < samples && std::ssize(first) < shards; ++i) {
    const std::int64_t shard = std::ssize(first);  // the one that may begin at sample i
    const double part = static_cast<double>(shard) / static_cast<double>(shards);
    const bool begins = static_cast<double>(bytes_before) >= part * static_cast<double>(bytes),
               must_begin = samples - i == shards - shard;
    if (i > first.back() && (begins || must_begin)) first.push_back(i);
    bytes_before += plan.source_bytes(i);
  }
  first.push_back(samples);
  return first;
}

/// Cuts the samples into shards: kept files into shards of nearly equal bytes, all others into
/// shards of nearly equal numbers of samples. Nothing is encoded yet, so images that are skipped
/// later move no other one to another shard. Throws InputError if there are fewer samples.
void cut_shards(const ShardCommand& command, Plan& plan) {
  const std::int64_t samples = plan.samples();
  validate(samples > 0, "{}: has no images", command.sources.front());
  const std::int64_t bytes = plan.storage.is_raw()
                                 ? samples * plan.set.height * plan.set.width * plan.set.channels
                                 : source_bytes(plan);
  // Without --shards a shard has at least one sample.
  const std::int64_t wanted = number_of_shards(command, bytes),
                     shards = command.shards > 0 ? wanted : std::min(wanted, samples);
  validate(shards <= samples, "--shards {}: there are only {} samples", shards, samples);
  if (plan.storage.encoding == ImageStorage::Encoding::keep) {
    plan.first = cut_by_bytes(plan, shards, bytes);
    return;
  }
  for (std::int64_t shard = 0; shard <= shards; ++shard)
    plan.first.push_back(samples * shard / shards);
}

/// Sets the extents of the images and the shards. Collective.
void settle_shards(const ShardCommand& command, const comm::Communicator& world, Plan& plan) {
  if (plan.storage.is_raw()) settle_extents(world, plan);
  cut_shards(command, plan);
}

/// Decompresses the compressed files of the catalog into the staging folder, file i on rank
/// i % ranks. Collective.
void decompress_files(data::ImageCatalog& catalog, const fs::path& staging,
                      const comm::Communicator& world) {
  if (catalog.compressed.empty()) return;
  const fs::path folder = staging / "decompressed";
  comm::together(world, [&] {
    if (world.rank() == 0) fs::create_directory(folder);
  });
  catalog.content = catalog.files;
  comm::together(world, [&] {
    for (std::size_t i = 0; i < catalog.compressed.size(); ++i) {
      const std::uint32_t file = catalog.compressed[i];
      catalog.content[file] = folder / std::to_string(file);
      if (static_cast<int>(i % static_cast<std::size_t>(world.size())) == world.rank())
        data::decompress(catalog.files[file], catalog.content[file]);
    }
  });
}

/// Path of the list of skipped images of a shard in the staging folder.
fs::path skipped_list(const fs::path& staging, std::int64_t shard) {
  return staging / fmt::format("skipped_{}.csv", shard);
}

/// Writes shards, one after the other.
class ShardWork {
 public:
  ShardWork(const ShardCommand& command, const Plan& plan, const fs::path& staging,
            WritingProgress& progress)
      : command_(command),
        plan_(plan),
        staging_(staging),
        progress_(progress),
        reader_(plan.catalog) {}

  /// Writes a shard, unless a killed run has sealed it.
  void write(std::int64_t shard, WrittenShards& written) {
    const fs::path path = staging_ / data::shard_file_name(shard);
    if (written.keep(path))
      progress_.keep(plan_.first_of(shard + 1) - plan_.first_of(shard));
    else
      written.bytes += write_shard(shard, path.string());
  }

 private:
  std::int64_t write_shard(std::int64_t shard, const std::string& path) {
    const std::int64_t first = plan_.first_of(shard), end = plan_.first_of(shard + 1);
    images_.clear();
    if (plan_.storage.is_raw())
      images_.reserve(static_cast<std::size_t>((end - first) * plan_.set.height * plan_.set.width *
                                               plan_.set.channels));
    labels_.clear();
    offsets_ = {0};
    std::string skipped;
    for (std::int64_t i = first; i < end; ++i) {
      const data::CatalogEntry& entry = plan_.entry_at(i);
      if (append(entry, skipped)) {
        labels_.push_back(entry.label);
        offsets_.push_back(images_.size());
      }
      progress_.add_written();
    }
    // Before the shard: a shard that is kept has its list.
    const fs::path list = skipped_list(staging_, shard);
    if (skipped.empty())
      fs::remove(list);
    else
      io::replace_file(list.string(), skipped);
    return plan_.storage.is_raw()
               ? data::write_image_shard(path, plan_.set, images_,
                                         std::as_bytes(std::span(labels_)))
               : data::write_encoded_image_shard(path, plan_.set, images_, offsets_, labels_);
  }

  /// Appends an image as it is stored. If it cannot be used, appends it to `skipped` and returns
  /// false, or throws InputError, as --on-error says.
  bool append(const data::CatalogEntry& entry, std::string& skipped) {
    data::Image image;
    std::vector<std::byte> encoded;
    std::span<const std::byte> stored;
    try {
      if (plan_.storage.encoding == ImageStorage::Encoding::keep) {
        stored = reader_.read_file(entry);
      } else {
        image = resize(plan_.storage, reader_.read(entry));
        if (!plan_.storage.is_raw()) encoded = encode(plan_.storage, image);
        stored = plan_.storage.is_raw() ? image.pixels : encoded;
      }
    } catch (const InputError& error) {
      const Skipped left_out{place_of(plan_.catalog, entry), error.what()};
      validate(command_.on_error == "skip", "{}: {}; --on-error skip leaves such images out",
               left_out.place, left_out.reason);
      skipped += skipped_line(left_out.place, left_out.reason);
      return false;
    }
    if (plan_.storage.is_raw()) check_extents(image, entry);
    images_.insert(images_.end(), stored.begin(), stored.end());
    return true;
  }

  /// Throws InputError if an image has other extents than the shard.
  void check_extents(const data::Image& image, const data::CatalogEntry& entry) const {
    validate(image.height == plan_.set.height && image.width == plan_.set.width,
             "{}: has {} x {} pixels, but other images have {} x {}; shards of pixels hold images "
             "of one size: use --resize, as in --resize {}x{}, or --encode jpeg",
             place_of(plan_.catalog, entry), image.height, image.width, plan_.set.height,
             plan_.set.width, plan_.set.height, plan_.set.width);
  }

  const ShardCommand& command_;
  const Plan& plan_;
  const fs::path& staging_;
  WritingProgress& progress_;
  data::CatalogReader reader_;
  std::vector<std::byte> images_;       ///< of a shard: pixels, or files one after the other
  std::vector<std::uint64_t> offsets_;  ///< of the files, and the end
  std::vector<std::int32_t> labels_;
};

/// Writes all shards. Collective.
WrittenShards write_shards(const ShardCommand& command, const Plan& plan, const fs::path& staging,
                           const comm::Communicator& world, Log& log) {
  WritingProgress progress(
      world, plan.shards(), [&](std::int64_t shard) { return plan.first_of(shard); }, command.out,
      log);
  ShardWork work(command, plan, staging, progress);
  WrittenShards written;
  write_in_rounds(world, plan.shards(), [&](std::int64_t shard) { work.write(shard, written); });
  return written;
}

/// Collects the lists of skipped images in the staging folder, and returns their number. Throws
/// InputError if no image is left, or a file in the folder of the dataset is in the way.
std::int64_t collect_skipped(const Plan& plan, const ShardFolder& out) {
  std::string lines;
  for (std::int64_t shard = 0; shard < plan.shards(); ++shard) {
    const fs::path list = skipped_list(out.staging(), shard);
    if (fs::exists(list)) lines += io::read_text_file(list.string(), std::int64_t{1} << 30);
  }
  const std::int64_t count = std::count(lines.begin(), lines.end(), '\n');
  validate(count < plan.samples(), "none of the {} images can be used; the first: {}",
           plan.samples(), lines.substr(0, lines.find('\n')));
  if (count == 0) return 0;
  write_skipped_list(out, "image", lines);
  return count;
}

void print_summary(const ShardCommand& command, const Plan& plan, std::int64_t skipped,
                   std::int64_t bytes, double seconds) {
  const std::string& source = plan.catalog.class_source;
  const std::string form =
      plan.storage.is_raw() ? fmt::format("{} x {} x {} (height, width, channels)", plan.set.height,
                                          plan.set.width, plan.set.channels)
      : plan.storage.encoding == ImageStorage::Encoding::jpeg
          ? fmt::format("JPEG files of quality {}", plan.storage.quality)
      : plan.storage.encoding == ImageStorage::Encoding::png ? "PNG files"
                                                             : "files of the source";
  fmt::print("{}: {} of {}, {}{}, {}, {}, {:.1f} s\n", command.out,
             counted(plan.samples() - skipped, "sample", "samples"), form,
             counted(plan.class_count, "class", "classes"),
             source.empty() ? "" : fmt::format(" ({})", source),
             counted(plan.shards(), "shard", "shards"), format_bytes(bytes), seconds);
  if (skipped > 0)
    fmt::print("{}: skipped, as {}/{} says\n", counted(skipped, "image", "images"), command.out,
               skipped_file_name);
  if (plan.catalog.left_out > 0)
    fmt::print("{} of the source left out, as --image {} says\n",
               counted(plan.catalog.left_out, "image", "images"), printable(command.image));
  if (plan.catalog.ignored > 0)
    fmt::print("{} of the source ignored: no JPEG or PNG by name\n",
               counted(plan.catalog.ignored, "file", "files"));
}

}  // namespace

void shard_images(const ShardCommand& given, const CatalogMaker& catalog_of,
                  const comm::Communicator& world, Log& log) {
  const double began = monotonic_seconds();
  ShardCommand command = given;
  Plan plan = share_plan(command, catalog_of, world, log);
  command.source_identity = plan.catalog.identity;
  // Wrong input is found before the folder is made. Only compressed files need the folder first.
  const bool is_read_later = !plan.catalog.compressed.empty() && plan.storage.is_raw() &&
                             !plan.storage.extents &&
                             plan.catalog.coding == data::ImageCoding::file;
  if (!is_read_later) settle_shards(command, world, plan);
  ShardFolder out(world, command, "--out", command.out, log);
  decompress_files(plan.catalog, out.staging(), world);
  if (is_read_later) settle_shards(command, world, plan);
  WrittenShards written = write_shards(command, plan, out.staging(), world, log);
  std::int64_t skipped = 0;
  comm::together(world, [&] {
    if (world.rank() == 0) skipped = collect_skipped(plan, out);
  });
  written.sum_over_ranks(world, command.out, plan.shards(), log);
  out.publish();
  if (world.rank() == 0 && skipped == 0) remove_old_skipped_list(command.out);
  if (world.rank() == 0)
    print_summary(command, plan, skipped, written.bytes, monotonic_seconds() - began);
}

}  // namespace trireme::app
