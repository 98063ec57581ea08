// SPDX-License-Identifier: Apache-2.0
//
// `trireme bench io`: the speed of writing and reading checkpoints, compared with raw writes and
// reads.
//
// In each round the ranks write the same bytes three times: raw with pwrite, with write() of
// src/checkpoint, and with its BackgroundWrite. They read the raw file and the checkpoint back. The
// order of the three changes from round to round. Rank 0 prints medians as a table or as JSON.
// Called by command_bench.cpp on all ranks.
#include "bench_io.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

// Larger transfers are not faster.
constexpr std::int64_t raw_transfer_bytes = std::int64_t{16} << 20;
constexpr std::uint64_t min_state_bytes = std::uint64_t{1} << 20;
constexpr int layers = 12, vocabulary_per_width = 64;

/// The state that is written: a GPT-2 of 12 layers with the two moments of AdamW. It has a few
/// large and many small tensors; its width follows from `bytes`. Each rank holds an equal share of
/// the rows of each tensor, as data-parallel ranks do when they write.
struct BenchState {
  std::vector<parallel::ParameterSpec> specs;
  std::vector<checkpoint::TensorSlice> slices;
  std::vector<float> values;  ///< values of this rank
  std::int64_t bytes = 0;     ///< bytes of all ranks

  BenchState(std::uint64_t target_bytes, int rank, int size) {
    constexpr double groups = 3,
                     elements_per_square = vocabulary_per_width + 12 * layers;  // per width^2
    const double square =
        static_cast<double>(target_bytes) / (groups * elements_per_square * sizeof(float));
    declare(std::max<std::int64_t>(1, static_cast<std::int64_t>(std::sqrt(square))));
    std::int64_t own = 0;
    for (const char* group : {"model", "optimizer/exp_avg", "optimizer/exp_avg_sq"}) {
      for (const parallel::ParameterSpec& spec : specs) {
        const std::int64_t begin = spec.rows() * rank / size, end = spec.rows() * (rank + 1) / size;
        slices.push_back({.path = fmt::format("{}/{}", group, spec.name),
                          .spec = &spec,
                          .row_begin = begin,
                          .row_end = end});
        own += (end - begin) * spec.row_elements();
        bytes += spec.shape.elements() * static_cast<std::int64_t>(sizeof(float));
      }
    }
    values.resize(static_cast<std::size_t>(own));
    const std::uint64_t key = random_key(1, fmt::format("bench io {}", rank));
    // Random values, so that no disk can compress them.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = uniform_unit(static_cast<std::uint32_t>(mix64(key + i) >> 32));
    float* next = values.data();
    for (checkpoint::TensorSlice& slice : slices) {
      slice.data = next;
      next += (slice.row_end - slice.row_begin) * slice.spec->row_elements();
    }
  }
  std::int64_t own_bytes() const {
    return static_cast<std::int64_t>(values.size() * sizeof(float));
  }

 private:
  /// Declares the tensors of a model of this width.
  void declare(std::int64_t width) {
    const auto add = [&](const std::string& name, const Shape& shape) {
      specs.push_back({.name = name, .shape = shape});
    };
    add("wte.weight", {vocabulary_per_width * width, width});
    for (int layer = 0; layer < layers; ++layer) {
      const std::string block = fmt::format("h.{}.", layer);
      for (const char* norm : {"ln_1", "ln_2"}) {
        add(block + norm + ".weight", {width});
        add(block + norm + ".bias", {width});
      }
      for (const auto& [name, in, out] :
           {std::tuple("attn.c_attn", 1, 3), std::tuple("attn.c_proj", 1, 1),
            std::tuple("mlp.c_fc", 1, 4), std::tuple("mlp.c_proj", 4, 1)}) {
        add(block + name + ".weight", {in * width, out * width});
        add(block + name + ".bias", {out * width});
      }
    }
    add("ln_f.weight", {width});
    add("ln_f.bias", {width});
  }
};

/// A new folder below `parent`; the destructor removes it. Collective.
class ScratchFolder {
 public:
  ScratchFolder(const std::string& parent, const comm::Communicator& world) : world_(world) {
    std::string name = parent + "/trireme-bench-XXXXXX";
    comm::together(world, [&] {
      const bool made = world.rank() != 0 || ::mkdtemp(name.data()) != nullptr;
      validate_path(made ? 0 : errno, "--folder {}: no subfolder can be created in it: {}", parent,
                    std::strerror(errno));
    });
    path_ = world.broadcast(name, 0);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (world_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  const comm::Communicator& world_;
  std::string path_;
};

/// One way to write or read, with its seconds in each round.
struct IoMethod {
  std::string name;
  bool reads = false;
  std::vector<double> seconds = {};
};

/// Measures all ways in turns and prints the results. All member functions are collective except
/// the statistics.
class IoBenchmark {
 public:
  IoBenchmark(const BenchIoOptions& options, const comm::Communicator& world)
      : options_(options),
        world_(world),
        state_(options.bytes, world.rank(), world.size()),
        folder_(options.folder, world),
        memory_(background_arena()) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
    const std::int64_t own = state_.own_bytes();
    world.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
    for (int rank = 0; rank < world.rank(); ++rank)
      raw_offset_ += all[static_cast<std::size_t>(rank)];
  }

  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      std::vector<std::function<void()>> measurements{
          [&] { measure_raw(); }, [&] { measure_write(); }, [&] { measure_background_write(); }};
      // Rotate the order, so that no way is always the first after a pause.
      std::rotate(measurements.begin(), measurements.begin() + round % 3, measurements.end());
      for (const auto& measure : measurements) measure();
    }
    if (world_.rank() == 0) options_.json ? print_json() : print_table();
  }

 private:
  /// Returns host memory for one background checkpoint of this state.
  Arena background_arena() const {
    Arena planned({DeviceKind::meta, 0}, "plan", 0);
    checkpoint::allocate_background_memory(planned, state_.slices);
    return Arena({DeviceKind::cpu, 0}, "checkpoint under way", planned.peak_bytes());
  }

  /// Returns the seconds until the last rank has run `body`.
  template <class Body>
  double timed(Body&& body) const {
    world_.barrier();
    const double start = monotonic_seconds();
    comm::together(world_, body);
    return slowest(monotonic_seconds() - start);
  }
  double slowest(double seconds) const {
    world_.all_reduce(std::span(&seconds, 1), comm::Reduction::max);
    return seconds;
  }

  void remove(const std::string& path) const {
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove(path);
    world_.barrier();
  }

  /// Measures raw writes and reads of this rank's bytes in one shared file.
  void measure_raw() {
    const std::string path = folder_ / "raw";
    comm::together(world_, [&] {
      if (world_.rank() != 0) return;
      io::File file(path, io::File::Mode::create);
      file.close();
      // A file system that allocates late may refuse; then writing allocates.
      std::error_code ignored;
      if (const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC); descriptor >= 0) {
        if (::fallocate(descriptor, 0, 0, static_cast<off_t>(state_.bytes)) != 0)
          std::filesystem::resize_file(path, static_cast<std::uintmax_t>(state_.bytes), ignored);
        ::close(descriptor);
      }
    });
    raw_write_.seconds.push_back(timed([&] {
      io::File file(path, io::File::Mode::update);
      for_each_transfer([&](std::int64_t at, char* data, std::int64_t bytes) {
        file.write_at(raw_offset_ + at, data, bytes);
      });
      file.sync();
      file.close();
    }));
    io::File(path, io::File::Mode::read).drop_from_page_cache();
    raw_read_.seconds.push_back(timed([&] {
      const io::File file(path, io::File::Mode::read);
      for_each_transfer([&](std::int64_t at, char* data, std::int64_t bytes) {
        file.read_at(raw_offset_ + at, data, bytes);
      });
    }));
    remove(path);
  }

  /// Calls body(offset, data, bytes) for parts of this rank's bytes.
  template <class Body>
  void for_each_transfer(Body&& body) {
    char* data = reinterpret_cast<char*>(state_.values.data());
    const std::int64_t own = state_.own_bytes();
    for (std::int64_t at = 0; at < own; at += raw_transfer_bytes)
      body(at, data + at, std::min(raw_transfer_bytes, own - at));
  }

  /// Measures write() and read().
  void measure_write() {
    const std::string path = folder_ / "at_once.h5";
    checkpoint::WriteReport report;
    write_total_.seconds.push_back(
        timed([&] { report = checkpoint::write(world_, path, state_.slices, {}); }));
    write_payload_.seconds.push_back(slowest(report.writing_seconds));
    io::File(path, io::File::Mode::read).drop_from_page_cache();
    read_.seconds.push_back(timed([&] { checkpoint::read(world_, path, state_.slices); }));
    remove(path);
  }

  /// Measures BackgroundWrite. The caller polls like the training loop, without steps in between.
  void measure_background_write() {
    const std::string path = folder_ / "background.h5";
    checkpoint::WriteReport report;
    background_total_.seconds.push_back(timed([&] {
      checkpoint::BackgroundWrite writing(world_, path, state_.slices, {}, copy_);
      for (bool done = false; !done; done = writing.advance()) {
        while (writing.busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        // like the training loop, advance once no rank's thread is busy
        world_.barrier();
      }
      report = writing.finish();
    }));
    background_payload_.seconds.push_back(slowest(report.writing_seconds));
    copy_seconds_.push_back(slowest(report.copy_seconds));
    caller_seconds_.push_back(slowest(report.caller_seconds));
    remove(path);
  }

  static double median(std::vector<double> numbers) {
    std::sort(numbers.begin(), numbers.end());
    const std::size_t middle = numbers.size() / 2;
    return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
  }
  double rate(double seconds) const { return static_cast<double>(state_.bytes) / seconds / 1e6; }
  double median_rate(const IoMethod& way) const { return rate(median(way.seconds)); }
  double min_rate(const IoMethod& way) const {
    return rate(*std::max_element(way.seconds.begin(), way.seconds.end()));
  }
  double max_rate(const IoMethod& way) const {
    return rate(*std::min_element(way.seconds.begin(), way.seconds.end()));
  }
  /// Returns the median over the rounds of the rate relative to the raw rate of the same round.
  double ratio_to_raw(const IoMethod& way) const {
    const IoMethod& raw = way.reads ? raw_read_ : raw_write_;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < way.seconds.size(); ++round)
      ratios.push_back(raw.seconds[round] / way.seconds[round]);
    return median(ratios);
  }

  std::vector<const IoMethod*> methods() const {
    return {&raw_write_,        &write_payload_, &write_total_, &background_payload_,
            &background_total_, &raw_read_,      &read_};
  }

  void print_table() const {
    fmt::print("{} in {} tensors, {}, {}, {} rounds\n\n", format_bytes(state_.bytes),
               state_.slices.size(), counted(world_.size(), "rank", "ranks"), options_.folder,
               options_.rounds);
    fmt::print("{:<38} {:>9} {:>20} {:>7}\n", "", "MB/s", "min .. max", "of raw");
    for (const IoMethod* way : methods()) {
      fmt::print("{:<38} {:>9.1f} {:>20} {:>7.2f}\n", way->name, median_rate(*way),
                 fmt::format("{:.1f} .. {:.1f}", min_rate(*way), max_rate(*way)),
                 ratio_to_raw(*way));
    }
    fmt::print(
        "\nDuring training the steps would wait for the copy ({:.4f} s) and {:.4f} s more, and "
        "for the thread where they need its core.\n",
        median(copy_seconds_), median(caller_seconds_));
    fmt::print(
        "writing: the file's layout, the values and their flush. whole: with digests, reading "
        "back, comparing, the seal and the rename.\n"
        "of raw: median over the rounds of the rate against raw writes (reads) of the same bytes "
        "by the same ranks in that round.\n");
  }

  void print_json() const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const IoMethod* way : methods()) {
      rows.push_back({{"name", way->name},
                      {"mb_per_s", median_rate(*way)},
                      {"least", min_rate(*way)},
                      {"most", max_rate(*way)},
                      {"of_raw", ratio_to_raw(*way)}});
    }
    const nlohmann::ordered_json json{{"subject", "io"},
                                      {"folder", options_.folder},
                                      {"ranks", world_.size()},
                                      {"bytes", state_.bytes},
                                      {"tensors", state_.slices.size()},
                                      {"rounds", options_.rounds},
                                      {"copy_s", median(copy_seconds_)},
                                      {"caller_s", median(caller_seconds_)},
                                      {"ways", rows}};
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }

  const BenchIoOptions& options_;
  const comm::Communicator& world_;
  BenchState state_;
  ScratchFolder folder_;
  Arena memory_;
  checkpoint::StateCopy copy_{memory_, {}};
  std::int64_t raw_offset_ = 0;
  IoMethod raw_write_{"raw write"}, write_payload_{"checkpoint at once: writing"},
      write_total_{"checkpoint at once: whole"},
      background_payload_{"checkpoint by a thread: writing"},
      background_total_{"checkpoint by a thread: whole"}, raw_read_{"raw read", true},
      read_{"checkpoint read and checked", true};
  std::vector<double> copy_seconds_, caller_seconds_;
};

}  // namespace

void bench_io(const BenchIoOptions& options, const comm::Communicator& world) {
  validate(options.bytes >= min_state_bytes, "--bytes {}: below {} only overheads are measured",
           options.bytes, format_bytes(min_state_bytes));
  comm::together(world, [&] {
    std::error_code error;
    validate(std::filesystem::is_directory(options.folder, error), "--folder {}: no such folder",
             options.folder);
    const std::int64_t room = io::free_bytes(options.folder);
    validate(options.bytes <= static_cast<std::uint64_t>(room),
             "--bytes {}: only {} ({}) are free in {}", options.bytes, room, format_bytes(room),
             options.folder);
  });
  IoBenchmark(options, world).run();
}

}  // namespace trireme::app
