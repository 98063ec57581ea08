// SPDX-License-Identifier: Apache-2.0
//
// `trireme bench data`: how fast a dataset is read, by the loader that training uses.
//
// For each number of reader threads and micro-batches ahead, a loader runs for some seconds and
// nothing else happens. With a GPU, loaders whose memory is pinned follow. Reading whole shards in
// large blocks shows what the disk can do. The last stage, crop, flip and normalization, is
// measured alone, since a device does it in training.
#include "bench_data.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/io/file.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::app {
namespace {

constexpr std::int64_t large_read_bytes = std::int64_t{16} << 20;
constexpr std::int64_t default_crop_padding = 4;
constexpr std::int64_t default_crop = 224;  // of encoded images, as for ImageNet
constexpr std::int64_t default_context = 1024;

/// Returns the processor seconds of all threads of this process.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Returns the bytes that this process has made the disk read; 0 where the system does not say.
std::int64_t disk_bytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  std::int64_t value = 0;
  while (file >> key >> value)
    if (key == "read_bytes:") return value;
  return 0;
}

/// One measurement.
struct Rate {
  std::string stage;
  int workers = 0, prefetch = 0;  // 0: does not apply
  double seconds = 0, processor = 0;
  std::int64_t samples = 0, bytes = 0, from_disk = 0;

  double samples_per_second() const { return static_cast<double>(samples) / seconds; }
  double samples_per_core() const { return static_cast<double>(samples) / processor; }
  double megabytes_per_second() const { return static_cast<double>(bytes) / seconds / 1e6; }
};

class DataBenchmark {
 public:
  explicit DataBenchmark(const BenchDataOptions& options)
      : options_(options),
        index_(data::index_dataset(options.folder, any_target())),
        pipeline_(pipeline_of(index_.info, options)),
        sample_form_(form_of(options.context > 0 ? options.context : default_context)),
        dataset_(index_, sample_form_),
        batch_(std::min(options.batch, dataset_.info().samples)) {
    for (const std::string& path : data::shard_paths(options.folder))
      files_.emplace_back(path, io::File::Mode::read);
  }

  void run() {
    const std::vector<int> workers =
        options_.workers > 0 ? std::vector<int>{options_.workers} : std::vector<int>{1, 2, 4};
    rates_.push_back(read_large_blocks());
    for (const int count : workers)
      for (const int prefetch : {1, 4}) rates_.push_back(read_samples(count, prefetch));
    if (cuda_device_count() > 0) {
      const Device device = choose_cuda_device(0);
      for (const int count : workers) rates_.push_back(read_samples(count, 4, device));
    }
    using enum data::ImageStep;
    if (pipeline_.has(scale, data::StepPlace::reader) ||
        pipeline_.has(colors, data::StepPlace::reader))
      add_parts_of_reading();
    if (dataset_.info().kind != data::DatasetKind::tokens) rates_.push_back(prepare_images());
    options_.json ? print_json() : print_table();
  }

 private:
  /// The targets are those of the shards.
  static data::SampleForm any_target() {
    data::SampleForm form;
    form.target_use = data::TargetUse::of_shards;
    return form;
  }
  data::SampleForm form_of(std::int64_t context) const {
    data::SampleForm form = any_target();
    form.context = context;
    form.image = pipeline_.form();
    return form;
  }

  /// Returns the steps of images.
  static data::ImagePipeline pipeline_of(const data::DatasetInfo& info,
                                         const BenchDataOptions& options) {
    const bool is_encoded = info.kind == data::DatasetKind::encoded_images,
               has_tokens = info.kind == data::DatasetKind::tokens;
    validate(!has_tokens || options.crop == 0,
             "bench data: --crop {} is for images, but {} contains tokens", options.crop,
             options.folder);
    validate(has_tokens || options.crop == 0 || info.pixel_type == DType::uint8,
             "bench data: --crop {} scales uint8 images, but {} contains {}; leave it out",
             options.crop, options.folder, to_string(info.pixel_type));
    validate(has_tokens || options.context == 0,
             "bench data: --context {} is for tokens, but {} contains images", options.context,
             options.folder);
    data::AugmentOptions augment;
    augment.random_resized_crop.size = options.crop > 0 ? options.crop
                                       : is_encoded     ? default_crop
                                                        : 0;
    augment.random_crop =
        options.colors && augment.random_resized_crop.size > 0 ? 0 : default_crop_padding;
    augment.flip = true;
    if (options.colors) {
      validate(info.channels == 3 && info.pixel_type == DType::uint8,
               "{}: --colors changes RGB images of uint8, but its samples have {} of {}; remove it",
               options.folder, counted(info.channels, "channel", "channels"),
               to_string(info.pixel_type));
      augment.color_jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
      augment.rand_augment.count = 2;
    }
    const bool is_fast = options.decode == "fast";
    validate(is_encoded || !is_fast,
             "bench data: --decode fast applies to encoded images, which {} does not hold",
             options.folder);
    return data::ImagePipeline::training(augment, 1,
                                         is_fast ? data::Decoding::fast : data::Decoding::exact);
  }

  void drop_if_cold() const {
    if (!options_.cold) return;
    for (const io::File& file : files_) file.drop_from_page_cache();
  }

  /// Begins a measurement, calls `step` until the time is over or it returns 0 samples, and ends
  /// it. `step` returns the samples that it handled.
  template <class Step>
  Rate measure(std::string stage, Step&& step) const {
    Rate rate;
    rate.stage = std::move(stage);
    const std::int64_t disk = disk_bytes();
    const double begin = monotonic_seconds(), processor = processor_seconds();
    do {
      const std::int64_t samples = step();
      if (samples == 0) break;
      rate.samples += samples;
    } while (monotonic_seconds() - begin < options_.seconds);
    rate.seconds = monotonic_seconds() - begin;
    rate.processor = processor_seconds() - processor;
    rate.from_disk = disk_bytes() - disk;
    rate.bytes = rate.samples * dataset_.stored_bytes();
    return rate;
  }

  /// Reads the shards from front to back.
  Rate read_large_blocks() const {
    drop_if_cold();
    std::vector<std::byte> block(large_read_bytes);
    std::size_t file = 0;
    std::int64_t at = 0, bytes = 0;
    Rate rate = measure("large blocks", [&]() -> std::int64_t {
      while (file < files_.size() && at >= files_[file].size()) {
        ++file;
        at = 0;
      }
      if (file == files_.size()) return 0;
      const std::int64_t part = std::min(large_read_bytes, files_[file].size() - at);
      files_[file].read_at(at, block.data(), part);
      at += part;
      bytes += part;
      return 1;
    });
    rate.samples = 0;
    rate.bytes = bytes;
    return rate;
  }

  data::LoaderOptions loader_options(int workers, int prefetch, Device device = {}) const {
    data::LoaderOptions options;
    options.device = device;
    const std::int64_t samples = dataset_.info().samples;
    options.order = {.samples = samples,
                     .shuffle = options_.cold ? data::Shuffle::blocks : data::Shuffle::full};
    options.batching = {.samples = samples, .global_batch = batch_};
    options.augmentation = pipeline_.augmentation({dataset_.info().height, dataset_.info().width});
    options.micro = batch_;
    options.workers = workers;
    options.prefetch = prefetch;
    options.memory_name = "micro-batches read ahead (--batch)";
    return options;
  }

  /// Reads samples with the loader; with `cold` at most one epoch, so that no sample is read twice.
  /// `device`: for a GPU the memory of the micro-batches is pinned.
  Rate read_samples(int workers, int prefetch, Device device = {}) {
    drop_if_cold();
    // A dataset keeps decompressed rows, which another measurement must not find.
    const data::Dataset dataset(index_, sample_form_);
    data::Loader loader(dataset, loader_options(workers, prefetch, device));
    std::int64_t left = options_.cold ? dataset_.info().samples / batch_ : -1;
    loader.start({0, 0});
    // The first micro-batches wait for the threads to start; from a disk they count.
    for (int i = 0; i <= prefetch && !options_.cold; ++i) loader.next();
    reader_times_ = {};
    Rate rate =
        measure(device.kind == DeviceKind::cuda ? "read, pinned" : "read", [&]() -> std::int64_t {
          if (left-- == 0) return 0;
          reader_times_ += loader.next().times;
          return batch_;
        });
    samples_read_ = rate.samples;
    rate.workers = workers;
    rate.prefetch = prefetch;
    return rate;
  }

  /// Adds rows for the work of the reader threads in the last measurement.
  void add_parts_of_reading() {
    for (const auto& [stage, seconds] :
         {std::pair("  read the stored sample", reader_times_.read),
          {"  decode", reader_times_.decode},
          {options_.colors ? "  crop and colors" : "  crop and scale", reader_times_.augment}}) {
      if (seconds == 0) continue;
      Rate& rate = rates_.emplace_back();
      rate.stage = stage;
      rate.samples = samples_read_;
      rate.processor = seconds;
    }
  }

  /// Crops, flips and normalizes one micro-batch again and again.
  Rate prepare_images() const {
    data::Loader loader(dataset_, loader_options(1, 1));
    loader.start({0, 0});
    const data::MicroBatch& batch = loader.next();
    const std::int64_t channels = dataset_.info().channels,
                       values = batch.inputs.elements() + 2 * channels;
    Arena workspace({}, "workspace", 0), library({}, "library", 0),
        memory({}, "prepared images", values * size_of(DType::float32) + 128);
    ops::Context context({}, workspace, library);
    const Tensor y = memory.allocate(DType::float32, batch.inputs.shape);
    ops::ImagePreparation preparation{{0.5f, 0.5f, 0.5f, 0.5f}, {4, 4, 4, 4}};
    if (channels > ops::max_inline_channels) {
      preparation.statistics = memory.allocate(DType::float32, {2, channels});
      std::fill_n(preparation.statistics.as<float>(), channels, 0.5f);
      std::fill_n(preparation.statistics.as<float>() + channels, channels, 4.0f);
    }
    return measure("crop, flip, normalize", [&] {
      ops::prepare_images(context, preparation, batch.inputs, batch.transforms, y);
      return batch_;
    });
  }

  void print_table() const {
    const data::DatasetInfo& info = dataset_.info();
    fmt::print("{}: {} of {} in {}, micro-batches of {}{}\n\n", options_.folder,
               counted(info.samples, "sample", "samples"),
               format_bytes(dataset_.sample().input_bytes()),
               counted(std::ssize(files_), "shard", "shards"), batch_,
               options_.cold ? ", from the disk" : "");
    fmt::print("{:<24} {:>7} {:>8} {:>12} {:>10} {:>14} {:>10}\n", "", "workers", "prefetch",
               "samples/s", "MB/s", "samples/s core", "disk MB");
    for (const Rate& rate : rates_) {
      const auto number = [](int value) { return value == 0 ? "" : std::to_string(value); };
      const auto number_if = [](bool is_known, double value) {
        return is_known ? fmt::format("{:.0f}", value) : std::string();
      };
      const bool has_samples = rate.samples > 0, is_measured = rate.seconds > 0;
      fmt::print("{:<24} {:>7} {:>8} {:>12} {:>10} {:>14} {:>10}\n", rate.stage,
                 number(rate.workers), number(rate.prefetch),
                 number_if(has_samples && is_measured, rate.samples_per_second()),
                 number_if(is_measured, rate.megabytes_per_second()),
                 number_if(has_samples, rate.samples_per_core()),
                 number_if(is_measured, static_cast<double>(rate.from_disk) / 1e6));
    }
    fmt::print(
        "\nlarge blocks: whole shards from front to back. samples/s core: for each second of a "
        "processor.\n");
  }

  void print_json() const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Rate& rate : rates_) {
      nlohmann::ordered_json row{
          {"stage", std::string(rate.stage.substr(rate.stage.find_first_not_of(' ')))}};
      if (rate.workers > 0) row.update({{"workers", rate.workers}, {"prefetch", rate.prefetch}});
      if (rate.samples > 0 && rate.seconds > 0)
        row.update({{"samples_per_s", rate.samples_per_second()}});
      if (rate.samples > 0) row.update({{"samples_per_s_core", rate.samples_per_core()}});
      if (rate.seconds > 0)
        row.update({{"mb_per_s", rate.megabytes_per_second()}, {"disk_bytes", rate.from_disk}});
      rows.push_back(row);
    }
    const nlohmann::ordered_json json{{"subject", "data"},
                                      {"folder", options_.folder},
                                      {"samples", dataset_.info().samples},
                                      {"sample_bytes", dataset_.sample().input_bytes()},
                                      {"batch", batch_},
                                      {"cold", options_.cold},
                                      {"rows", rows}};
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }

  const BenchDataOptions& options_;
  data::DatasetIndex index_;
  data::ImagePipeline pipeline_;
  data::SampleForm sample_form_;
  data::Dataset dataset_;
  std::int64_t batch_;
  std::vector<io::File> files_;
  std::vector<Rate> rates_;
  data::ReadTimes reader_times_;   ///< in the last measurement of reading
  std::int64_t samples_read_ = 0;  ///< in the last measurement of reading
};

}  // namespace

void bench_data(const BenchDataOptions& options) {
  validate(!options.folder.empty(), "bench data: --folder DATASET is missing");
  DataBenchmark(options).run();
}

}  // namespace trireme::app
