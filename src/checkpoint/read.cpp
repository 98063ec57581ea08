// SPDX-License-Identifier: Apache-2.0
//
// Reading checkpoints: contents, tensors, digests.
//
// Order of read(), collective over all ranks:
//   1. rank 0 indexes the file and broadcasts the index; every rank opens the file
//   2. each rank reads its rows in rounds of 64 MiB and adds their digests
//   3. sums over the ranks show how often each element was read
//   4. digests are compared; tensors that were read unevenly are read a second time
//   5. infinite and NaN values are rejected
// Called by restarts, `evaluate` and `generate` in src/train; read_contents() also by `inspect`.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>

#include "digest.hpp"
#include "host_rows.hpp"
#include "rows.hpp"
#include "serialize.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

// The groups of the file that contain tensors.
constexpr const char* tensor_groups[] = {"buffers", "ema", "model", "optimizer"};

/// Returns the name of the weight of a tensor optimizer/<slot>/<weight>.
std::string weight_of_slot(const std::string& path) {
  return path.substr(path.find('/', path.find('/') + 1) + 1);
}

/// Returns a count that is stored as an attribute; 0 if it is missing. Throws InputError if it is
/// negative.
std::int64_t read_count(const io::Hdf5Index& file, const std::string& name,
                        const std::string& object = "/") {
  if (!file.has(object) || !file.has_attribute(object, name)) return 0;
  const std::int64_t count = file.attribute_int(object, name);
  validate(count >= 0, "{}: attribute {} of {} is {}; it must not be negative", file.path(), name,
           object, count);
  return count;
}

/// Returns what the file says about the program that wrote it; "" if that is missing or no text.
/// Nothing depends on it, so a wrong one must not cost the checkpoint.
std::string read_writer(const io::Hdf5Index& file) {
  if (!file.has_attribute("/", "written_by")) return "";
  try {
    return file.attribute_string("/", "written_by");
  } catch (const InputError&) {
    return "";
  }
}

/// Checks format, version and completeness. Throws InputError or NewerFormat.
void check_format(const io::Hdf5Index& file) {
  const std::string& path = file.path();
  validate(file.has_attribute("/", "format"),
           "{}: has no attribute format; a checkpoint has format = \"trireme-checkpoint\"", path);
  const std::string format = file.attribute_string("/", "format");
  validate(format == "trireme-checkpoint",
           "{}: format is \"{}\", but must be \"trireme-checkpoint\"", path, printable(format));
  const std::int64_t version = file.attribute_int("/", "version");
  if (version > 1)
    throw NewerFormat(
        fmt::format("{}: version {} of the checkpoint format is not supported (only 1 is): a newer "
                    "program wrote it; use that program, or move the file away",
                    path, version));
  validate(version == 1, "{}: version {} of the checkpoint format is not supported (only 1 is)",
           path, version);
  validate(file.has_attribute("/", "complete") && file.attribute_int("/", "complete") == 1,
           "{}: attribute complete is not 1: the file was not written completely", path);
}

/// Returns the paths of all tensors of the file, sorted.
std::vector<std::string> tensor_paths(const io::Hdf5Index& file) {
  std::vector<std::string> paths;
  for (const char* group : tensor_groups) {
    if (!file.has(group)) continue;
    const std::vector<std::string> below = file.list_datasets(group);
    paths.insert(paths.end(), below.begin(), below.end());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Returns the shape of a dataset. Throws InputError if it has too many dimensions.
Shape shape_of(const io::StoredDataset& dataset) {
  const std::vector<std::int64_t>& extents = dataset.shape;
  validate(extents.size() <= Shape::max_rank, "{}: has {} dimensions; a tensor has at most {}",
           dataset.location, extents.size(), Shape::max_rank);
  Shape shape;
  for (const std::int64_t extent : extents) shape.push_back(extent);
  return shape;
}

/// Returns whether a dataset has a digest that can be checked. Only float32 datasets do: other
/// types are converted when they are read, and their digest would not match.
bool has_digest(const io::Hdf5Index& file, const io::StoredDataset& dataset,
                const std::string& path) {
  return dataset.kind == io::StoredDataset::Kind::real && dataset.element_bytes == 4 &&
         file.has_attribute(path, "digest");
}

/// Returns path, shape and digest of a tensor. Throws InputError if it is not of real numbers.
Contents::Entry entry_of(const io::Hdf5Index& file, const std::string& path) {
  const io::StoredDataset& dataset = file.dataset(path);
  validate(dataset.kind == io::StoredDataset::Kind::real, "{}: its values are not real numbers",
           dataset.location);
  Contents::Entry entry{path, shape_of(dataset), 0, has_digest(file, dataset, path)};
  validate(entry.shape.elements() > 0, "{}: has the shape {} without elements", dataset.location,
           to_string(entry.shape));
  if (entry.has_digest) entry.digest = file.attribute_uint(path, "digest");
  return entry;
}

/// Reads the rows of a slice in rounds of at most 64 MiB and converts them to memory order.
void read_rows(const io::Hdf5Reader& reader, const io::StoredDataset& dataset,
               const TensorSlice& slice, HostRows& host, std::vector<float>& staging) {
  const parallel::ParameterSpec& spec = *slice.spec;
  const parallel::TensorPartition partition = partition_of(slice);
  const bool plain = spec.inner == parallel::InnerOrder::plain;
  for_each_round(
      slice, rows_per_round(partition.row_elements()), [&](std::int64_t begin, std::int64_t end) {
        float* rows = host.begin_write(slice, begin, end);
        if (!plain)
          staging.resize(std::max(
              staging.size(), static_cast<std::size_t>((end - begin) * partition.row_elements())));
        reader.read(dataset, boxes_of_rows(spec, partition, begin, end), io::Hdf5Number::float32,
                    plain ? rows : staging.data());
        if (!plain) to_memory_order(spec, end - begin, staging.data(), rows);
        host.end_write(slice, begin, end);
      });
}

/// Sums over the slices that were read: first of this rank, after sum_over_ranks() of all ranks.
/// One entry for each tensor of the file, sorted by path, since ranks may read different tensors.
/// Tensors without a digest stay 0.
struct ReadSums {
  explicit ReadSums(std::size_t tensors)
      : elements(tensors), coverage(tensors), digest_sums(tensors), stored_digests(tensors) {}
  std::vector<std::uint64_t> elements, coverage;  ///< the two sums of Coverage
  /// Digest of the values in memory, and the digest that the file stores.
  std::vector<std::uint64_t> digest_sums, stored_digests;

  /// Adds a slice that was read.
  void add(std::size_t tensor, const TensorSlice& slice, HostRows& host, std::uint64_t digest) {
    const Coverage held = coverage_of(partition_of(slice), slice.row_begin, slice.row_end);
    elements[tensor] += held.elements;
    coverage[tensor] += held.hash;
    digest_sums[tensor] += digest_of(host, slice);
    stored_digests[tensor] = digest;
  }
  /// Sums over all ranks. Collective.
  void sum_over_ranks(const comm::Communicator& world) {
    for (std::vector<std::uint64_t>* numbers : {&elements, &coverage, &digest_sums})
      world.all_reduce(std::span(*numbers), comm::Reduction::sum);
    world.all_reduce(std::span(stored_digests), comm::Reduction::max);
  }
};

/// Returns the digest of this rank's share of the rows of a dataset. Reads them in rounds of at
/// most 64 MiB.
std::uint64_t digest_of_share(const io::Hdf5Reader& reader, const io::StoredDataset& dataset,
                              const comm::Communicator& world) {
  parallel::ParameterSpec spec;
  spec.shape = shape_of(dataset);
  spec.split.along = parallel::Split::Along::rows;
  const parallel::TensorPartition partition(spec, world.rank(), world.size());
  const std::int64_t step = rows_per_round(partition.row_elements());
  std::vector<float> values(
      static_cast<std::size_t>(std::min(step, partition.rows()) * partition.row_elements()));
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < partition.rows(); begin += step) {
    const std::int64_t end = std::min(partition.rows(), begin + step);
    reader.read(dataset, boxes_of_rows(spec, partition, begin, end), io::Hdf5Number::float32,
                values.data());
    sum += digest_rows(spec, partition, begin, end, values.data());
  }
  return sum;
}

/// Throws InputError if the digest of the values of a tensor is not the one that the file stores.
void check_digest(const io::Hdf5Reader& reader, const std::string& tensor, std::uint64_t found,
                  std::uint64_t expected) {
  validate(found == expected,
           "{}: the values of {} do not match its digest: the file is damaged; `trireme verify` "
           "reports the place",
           reader.path(), printable(tensor));
}

/// Returns the shape that the file must have for a slice.
Shape stored_shape(const TensorSlice& slice) {
  Shape shape = slice.spec->shape;
  if (slice.stored_grid) shape[1] = slice.stored_grid->positions();
  return shape;
}

/// Reads a tensor with another grid whole, compares its digest, and interpolates the rows of a
/// slice.
void read_interpolated(const io::Hdf5Reader& reader, const io::StoredDataset& dataset,
                       const TensorSlice& slice, HostRows& host) {
  const parallel::ParameterSpec& spec = *slice.spec;
  TRIREME_EXPECT(spec.grid && spec.inner == parallel::InnerOrder::plain &&
                 partition_of(slice).replicated());
  const io::Hdf5Index& file = reader.index();
  if (has_digest(file, dataset, slice.path))
    check_digest(reader, slice.path, digest_of_share(reader, dataset, comm::Communicator()),
                 file.attribute_uint(slice.path, "digest"));
  std::vector<float> stored(static_cast<std::size_t>(dataset.elements()));
  reader.read(dataset, io::Hdf5Number::float32, stored.data());
  const std::vector<float> values =
      parallel::interpolate(stored, *slice.stored_grid, *spec.grid, spec.shape[2]);
  const std::int64_t row = spec.row_elements();
  std::copy_n(values.data() + slice.row_begin * row, (slice.row_end - slice.row_begin) * row,
              host.begin_write(slice, slice.row_begin, slice.row_end));
  host.end_write(slice, slice.row_begin, slice.row_end);
}

/// Reads this rank's slices. `paths`: the sorted tensors of the file. Throws InputError for missing
/// tensors, other shapes and other types.
ReadSums read_slices(const io::Hdf5Reader& reader, const std::vector<std::string>& paths,
                     std::span<const TensorSlice> slices, HostRows& host) {
  const io::Hdf5Index& file = reader.index();
  ReadSums sums(paths.size());
  std::vector<float> staging;
  for (const TensorSlice& slice : slices) {
    if (slice.row_begin >= slice.row_end) continue;
    const auto found = std::lower_bound(paths.begin(), paths.end(), slice.path);
    validate(found != paths.end() && *found == slice.path,
             "{}: has no tensor {}, which the model of the deck needs (another model?)",
             file.path(), slice.path);
    const io::StoredDataset& dataset = file.dataset(slice.path);
    const Shape shape = shape_of(dataset), expected = stored_shape(slice);
    validate(shape == expected, "{}: {} has shape {}, but the model of the deck needs {}",
             file.path(), slice.path, to_string(shape), to_string(expected));
    validate(dataset.kind == io::StoredDataset::Kind::real, "{}: its values are not real numbers",
             dataset.location);
    if (slice.stored_grid) {
      read_interpolated(reader, dataset, slice, host);
      continue;
    }
    read_rows(reader, dataset, slice, host, staging);
    if (!has_digest(file, dataset, slice.path)) continue;
    sums.add(static_cast<std::size_t>(found - paths.begin()), slice, host,
             file.attribute_uint(slice.path, "digest"));
  }
  return sums;
}

/// Compares the values that were read with the digests of the file. Collective. Throws InputError.
void check_digests(const comm::Communicator& world, const io::Hdf5Reader& reader,
                   const std::vector<std::string>& paths, const ReadSums& sums) {
  std::vector<std::uint64_t> found(paths.size()), expected(paths.size());
  comm::together(world, [&] {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (sums.elements[i] == 0) continue;
      const io::StoredDataset& dataset = reader.index().dataset(paths[i]);
      parallel::ParameterSpec spec;
      spec.shape = shape_of(dataset);
      const std::uint64_t times = count_covers(spec, {sums.elements[i], sums.coverage[i]});
      // Every element was read equally often: the sum of the digests in memory is a multiple of the
      // stored one. Otherwise read the tensor again, evenly.
      if (times > 0) {
        found[i] = world.rank() == 0 ? sums.digest_sums[i] : 0;
        expected[i] = times * sums.stored_digests[i];
      } else {
        found[i] = digest_of_share(reader, dataset, world);
        expected[i] = sums.stored_digests[i];
      }
    }
  });
  world.all_reduce(std::span(found), comm::Reduction::sum);
  for (std::size_t i = 0; i < paths.size(); ++i)
    check_digest(reader, paths[i], found[i], expected[i]);
}

/// Checks that all values are finite: training cannot resume from others. Collective. Throws
/// InputError.
void check_finite(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, HostRows& host) {
  comm::together(world, [&] {
    for (const TensorSlice& slice : slices) {
      // A pending gradient may be infinite; the next step decides about it.
      if (slice.path.starts_with("optimizer/pending/")) continue;
      for_each_round(
          slice, HostRows::max_rows_per_call(slice), [&](std::int64_t begin, std::int64_t end) {
            const std::span values(
                host.read(slice, begin, end),
                static_cast<std::size_t>((end - begin) * partition_of(slice).row_elements()));
            const auto bad = std::find_if(values.begin(), values.end(),
                                          [](float value) { return !std::isfinite(value); });
            validate(
                bad == values.end(),
                "{}: {} holds a value that is not finite ({}): nothing can be trained or computed "
                "from it; use an older checkpoint",
                path, slice.path, bad == values.end() ? 0.0f : *bad);
          });
    }
  });
}

/// Returns the index of rank 0 on all ranks; rank 0 makes it unless it has one. Collective. Throws
/// InputError on all ranks.
std::shared_ptr<const io::Hdf5Index> index_on_all_ranks(
    const comm::Communicator& world, const std::string& path,
    std::shared_ptr<const io::Hdf5Index> index) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    reject_folder(path);
    if (!index) index = std::make_shared<const io::Hdf5Index>(io::index_hdf5(path));
    check_format(*index);
  });
  if (world.size() == 1) return index;
  std::int64_t file_bytes = world.rank() == 0 ? index->file_bytes() : 0;
  world.broadcast(std::as_writable_bytes(std::span(&file_bytes, 1)), 0);
  std::string report = world.broadcast(world.rank() == 0 ? index->report() : std::string(), 0);
  comm::together(world, [&] {
    if (world.rank() != 0)
      index = std::make_shared<const io::Hdf5Index>(path, file_bytes, std::move(report));
  });
  return index;
}

}  // namespace

void reject_folder(const std::string& path) {
  // A path that cannot be examined cannot be opened either; that error names the reason.
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  validate(!folder,
           "{}: is a folder, but must be a file; of a run folder name one of its checkpoints/*.h5",
           path);
}

Contents read_contents(const io::Hdf5Index& file) {
  file.refuse_places_outside();
  check_format(file);
  Contents contents;
  contents.sealed = io::has_seal(file.path());
  contents.info.step = read_count(file, "step");
  contents.info.epoch = read_count(file, "epoch");
  contents.info.epoch_samples = read_count(file, "epoch_samples");
  contents.info.samples = read_count(file, "samples");
  if (file.has_attribute("/", "deck")) contents.info.deck = file.attribute_string("/", "deck");
  contents.info.written_by = read_writer(file);
  if (file.has("state")) contents.info.state = file.attributes("state");
  contents.info.updates = read_count(file, "updates", "/optimizer");
  if (file.has("classes")) contents.info.classes = file.strings("classes");
  for (const std::string& tensor : tensor_paths(file)) {
    contents.tensors.push_back(entry_of(file, tensor));
    if (!tensor.starts_with("optimizer/")) continue;
    const std::int64_t before = read_count(file, "updates_before", tensor);
    if (before > 0) contents.info.updates_before[weight_of_slot(tensor)] = before;
  }
  return contents;
}

Contents read_contents(const std::string& path) {
  reject_folder(path);
  auto index = std::make_shared<const io::Hdf5Index>(io::index_hdf5(path));
  Contents contents = read_contents(*index);
  contents.index = std::move(index);
  return contents;
}

Contents read_contents(const comm::Communicator& world, const std::string& path) {
  Contents contents;
  comm::together(world, [&] {
    if (world.rank() == 0) contents = read_contents(path);
  });
  return broadcast_contents(world, std::move(contents));
}

void read(const comm::Communicator& world, const std::string& path,
          std::span<const TensorSlice> slices, std::shared_ptr<const io::Hdf5Index> index) {
  // 1. Every rank receives the index of rank 0 and opens the file.
  index = index_on_all_ranks(world, path, std::move(index));
  std::optional<io::Hdf5Reader> reader;
  std::vector<std::string> paths;
  comm::together(world, [&] {
    reader.emplace(std::move(index));
    paths = tensor_paths(reader->index());
  });
  // 2. Read the rows, then check digests and values.
  HostRows host(slices);
  std::optional<ReadSums> sums;
  comm::together(world, [&] { sums = read_slices(*reader, paths, slices, host); });
  sums->sum_over_ranks(world);
  check_digests(world, *reader, paths, *sums);
  check_finite(world, path, slices, host);
}

void set_to_zero(std::span<const TensorSlice> slices) {
  HostRows host(slices);
  for (const TensorSlice& slice : slices) {
    for_each_round(slice, HostRows::max_rows_per_call(slice),
                   [&](std::int64_t begin, std::int64_t end) {
                     std::fill_n(host.begin_write(slice, begin, end),
                                 (end - begin) * partition_of(slice).row_elements(), 0.0f);
                     host.end_write(slice, begin, end);
                   });
  }
}

std::vector<Contents::Entry> compute_digests(const io::Hdf5Reader& reader) {
  const comm::Communicator self;
  std::vector<Contents::Entry> tensors = read_contents(reader.index()).tensors;
  for (Contents::Entry& tensor : tensors) {
    tensor.digest = digest_of_share(reader, reader.index().dataset(tensor.path), self);
    tensor.has_digest = true;
  }
  return tensors;
}

std::vector<float> read_tensor(const io::Hdf5Reader& reader, const std::string& tensor) {
  const io::StoredDataset& dataset = reader.index().dataset(tensor);
  std::vector<float> values(static_cast<std::size_t>(dataset.elements()));
  reader.read(dataset, io::Hdf5Number::float32, values.data());
  return values;
}

}  // namespace trireme::checkpoint
