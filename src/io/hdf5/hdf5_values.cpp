// SPDX-License-Identifier: Apache-2.0
//
// Reads values of HDF5 datasets with positioned reads, by the places in an index.
//
// read_values() visits the runs of adjacent elements of the boxes in row-major order (RunMerger)
// and copies each one from its source:
//   contiguous   the file (FileSource); large runs go straight into the destination
//   compact      the values in the index (MemorySource)
//   chunked      the rows around the boxes, after unpack_rows() has decompressed their chunks
// Elements of another type or byte order are converted on the way. The loader's reader threads,
// restarts and `verify` call it.
#include "trireme/io/hdf5/hdf5_values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <type_traits>

#include <zlib.h>

#include "trireme/base/check.hpp"
#include "trireme/base/expect.hpp"

namespace trireme::io {
namespace {

// Runs of at least this many bytes are read straight into the destination. Shorter ones are read in
// windows of 64 runs, up to max_window_bytes.
constexpr std::int64_t direct_bytes = 64 << 10, max_window_bytes = 1 << 20;

// ---- conversion of elements

/// An IEEE 754 number of 16 bits.
struct Half {
  std::uint16_t bits;
};

double to_double(Half half) {
  const int sign = half.bits >> 15, exponent = (half.bits >> 10) & 31, fraction = half.bits & 1023;
  double value = exponent == 0    ? std::ldexp(fraction, -24)
                 : exponent == 31 ? (fraction == 0 ? std::numeric_limits<double>::infinity()
                                                   : std::numeric_limits<double>::quiet_NaN())
                                  : std::ldexp(1024 + fraction, exponent - 25);
  return sign != 0 ? -value : value;
}

template <class T>
T load(const std::byte* from, bool swapped) {
  std::byte bytes[sizeof(T)];
  std::memcpy(bytes, from, sizeof(T));
  if (swapped) std::reverse(bytes, bytes + sizeof(T));
  return std::bit_cast<T>(bytes);
}

/// Converts a number. Values out of range become the nearest value of the type.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<From, Half>) {
    return convert<To>(to_double(value));
  } else if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_floating_point_v<From>) {
    if (std::isnan(value)) return 0;
    // 2^digits is exact, unlike the largest value of the type.
    const From limit = std::ldexp(From{1}, std::numeric_limits<To>::digits);
    if (value >= limit) return std::numeric_limits<To>::max();
    if (value < static_cast<From>(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    return static_cast<To>(value);
  } else {
    if (std::cmp_less(value, std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (std::cmp_greater(value, std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  }
}

template <class From, class To>
void convert_run(const std::byte* from, bool swapped, std::int64_t count, std::byte* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const To value =
        convert<To>(load<From>(from + i * static_cast<std::int64_t>(sizeof(From)), swapped));
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(To)), &value, sizeof value);
  }
}

using ConvertRun = void (*)(const std::byte*, bool, std::int64_t, std::byte*);

template <class From>
ConvertRun conversion_to(Hdf5Number memory) {
  switch (memory) {
    case Hdf5Number::uint8: return convert_run<From, std::uint8_t>;
    case Hdf5Number::uint16: return convert_run<From, std::uint16_t>;
    case Hdf5Number::uint32: return convert_run<From, std::uint32_t>;
    case Hdf5Number::int32: return convert_run<From, std::int32_t>;
    case Hdf5Number::int64: return convert_run<From, std::int64_t>;
    case Hdf5Number::uint64: return convert_run<From, std::uint64_t>;
    case Hdf5Number::float16: break;
    case Hdf5Number::float32: return convert_run<From, float>;
    case Hdf5Number::float64: return convert_run<From, double>;
  }
  return nullptr;
}

ConvertRun conversion_of(const StoredDataset& dataset, Hdf5Number memory) {
  const bool is_signed = dataset.is_signed, real = dataset.kind == StoredDataset::Kind::real;
  switch (dataset.element_bytes) {
    case 1:
      return is_signed ? conversion_to<std::int8_t>(memory) : conversion_to<std::uint8_t>(memory);
    case 2:
      return real        ? conversion_to<Half>(memory)
             : is_signed ? conversion_to<std::int16_t>(memory)
                         : conversion_to<std::uint16_t>(memory);
    case 4:
      return real        ? conversion_to<float>(memory)
             : is_signed ? conversion_to<std::int32_t>(memory)
                         : conversion_to<std::uint32_t>(memory);
    default:
      return real        ? conversion_to<double>(memory)
             : is_signed ? conversion_to<std::int64_t>(memory)
                         : conversion_to<std::uint64_t>(memory);
  }
}

/// Returns whether the elements have the same bits in the file as in memory.
bool is_same_type(const StoredDataset& dataset, Hdf5Number memory) {
  const bool real = memory == Hdf5Number::float32 || memory == Hdf5Number::float64;
  const bool is_signed = memory == Hdf5Number::int32 || memory == Hdf5Number::int64 || real;
  return dataset.native_order && dataset.element_bytes == size_of(memory) &&
         (dataset.kind == StoredDataset::Kind::real) == real && dataset.is_signed == is_signed;
}

// ---- runs of adjacent elements

/// Adjacent elements of a dataset, counted in row-major order.
struct Run {
  std::int64_t first = 0, count = 0;
};

/// Visits the runs of one box in ascending order.
class BoxRuns {
 public:
  BoxRuns(const Hdf5Box& box, const std::vector<std::int64_t>& shape)
      : box_(box), position_(box.start), strides_(shape.size(), 1) {
    for (std::size_t d = shape.size(); d-- > 1;) strides_[d - 1] = strides_[d] * shape[d];
    // A run covers the innermost dimensions that the box contains completely, and one more.
    outer_ = shape.size();
    run_.count = 1;
    while (outer_ > 0) {
      run_.count *= box.count[--outer_];
      if (box.count[outer_] != shape[outer_]) break;
    }
    run_.first = first_element();
  }

  bool at_end() const { return done_; }
  const Run& run() const { return run_; }
  void next() {
    for (std::size_t d = outer_; d-- > 0;) {
      if (++position_[d] < box_.start[d] + box_.count[d]) {
        run_.first = first_element();
        return;
      }
      position_[d] = box_.start[d];
    }
    done_ = true;
  }

 private:
  std::int64_t first_element() const {
    std::int64_t element = 0;
    for (std::size_t d = 0; d < position_.size(); ++d) element += position_[d] * strides_[d];
    return element;
  }

  const Hdf5Box& box_;
  std::vector<std::int64_t> position_, strides_;
  std::size_t outer_ = 0;  ///< dimensions outside of a run
  Run run_;
  bool done_ = false;
};

/// Visits the runs of all boxes in ascending order.
class RunMerger {
 public:
  RunMerger(std::span<const Hdf5Box> boxes, const std::vector<std::int64_t>& shape) {
    for (const Hdf5Box& box : boxes)
      if (box.elements() > 0) boxes_.emplace_back(box, shape);
  }

  /// Calls `visit(run)` for each run.
  template <class Visit>
  void for_each(Visit&& visit) {
    while (!boxes_.empty()) {
      const auto least = std::min_element(
          boxes_.begin(), boxes_.end(),
          [](const BoxRuns& a, const BoxRuns& b) { return a.run().first < b.run().first; });
      visit(least->run());
      least->next();
      if (least->at_end()) boxes_.erase(least);
    }
  }

 private:
  std::list<BoxRuns> boxes_;
};

// ---- sources of elements

/// The bytes of a contiguous dataset in its file.
class FileSource {
 public:
  FileSource(const File& file, const StoredDataset& dataset)
      : file_(file),
        begin_(dataset.offset),
        end_(dataset.offset + dataset.bytes()),
        element_bytes_(dataset.element_bytes) {}

  /// Copies a run without conversion.
  void copy(const Run& run, std::byte* out) {
    const std::int64_t bytes = run.count * element_bytes_;
    if (bytes >= direct_bytes)
      file_.read_at(begin_ + run.first * element_bytes_, out, bytes);
    else
      std::memcpy(out, bytes_of(run), static_cast<std::size_t>(bytes));
  }

  /// Returns the bytes of a run, valid until the next call.
  const std::byte* bytes_of(const Run& run) {
    const std::int64_t from = begin_ + run.first * element_bytes_,
                       bytes = run.count * element_bytes_;
    const bool present = window_begin_ >= 0 && from >= window_begin_ &&
                         from + bytes <= window_begin_ + static_cast<std::int64_t>(window_.size());
    if (!present) {
      const std::int64_t wanted =
          std::max(bytes, std::clamp(64 * bytes, direct_bytes, max_window_bytes));
      window_.resize(static_cast<std::size_t>(std::min(wanted, end_ - from)));
      window_begin_ = -1;
      file_.read_at(from, window_.data(), static_cast<std::int64_t>(window_.size()));
      window_begin_ = from;
    }
    return window_.data() + (from - window_begin_);
  }

 private:
  const File& file_;
  std::int64_t begin_, end_, element_bytes_;
  std::vector<std::byte> window_;
  std::int64_t window_begin_ = -1;
};

/// Elements in memory. `first`: the number of the first one in the dataset.
class MemorySource {
 public:
  MemorySource(const std::byte* elements, std::int64_t first, std::int64_t element_bytes)
      : elements_(elements), first_(first), element_bytes_(element_bytes) {}
  void copy(const Run& run, std::byte* out) {
    std::memcpy(out, bytes_of(run), static_cast<std::size_t>(run.count * element_bytes_));
  }
  const std::byte* bytes_of(const Run& run) {
    return elements_ + (run.first - first_) * element_bytes_;
  }

 private:
  const std::byte* elements_;
  std::int64_t first_, element_bytes_;
};

// ---- chunks

/// Decompresses with zlib. Throws InputError unless the result has exactly the size of `out`.
void inflate_chunk(const std::vector<std::byte>& packed, std::vector<std::byte>& out,
                   const std::string& location, std::size_t chunk) {
  uLongf bytes = out.size();
  uLong used = packed.size();
  const int result = ::uncompress2(reinterpret_cast<Bytef*>(out.data()), &bytes,
                                   reinterpret_cast<const Bytef*>(packed.data()), &used);
  validate(result == Z_OK && bytes == out.size(),
           "{}: chunk {} does not unpack to {} bytes: the file is damaged", location, chunk + 1,
           out.size());
}

/// Undoes HDF5's shuffle: it stores the first bytes of all elements, then the second bytes, ...
void unshuffle(std::vector<std::byte>& bytes, std::size_t element_bytes,
               std::vector<std::byte>& scratch) {
  if (element_bytes < 2) return;
  scratch.resize(bytes.size());
  const std::size_t elements = bytes.size() / element_bytes;
  for (std::size_t part = 0; part < element_bytes; ++part)
    for (std::size_t i = 0; i < elements; ++i)
      scratch[i * element_bytes + part] = bytes[part * elements + i];
  bytes.swap(scratch);
}

/// Reads and unpacks chunks of one dataset.
class ChunkReader {
 public:
  ChunkReader(const File& file, const StoredDataset& dataset)
      : file_(file), dataset_(dataset), chunk_bytes_(dataset.element_bytes) {
    for (const std::int64_t extent : dataset.chunk) chunk_bytes_ *= extent;
  }

  /// Returns the elements of a chunk, valid until the next call.
  const std::vector<std::byte>& read(std::size_t number) {
    const Hdf5Chunk& chunk = dataset_.chunks[number];
    stored_.resize(chunk.bytes);
    file_.read_at(chunk.offset, stored_.data(), chunk.bytes);
    // Filters are undone in the reverse order of writing.
    for (std::size_t filter = dataset_.filters.size(); filter-- > 0;) {
      if (((chunk.skipped_filters >> filter) & 1) != 0) continue;
      if (dataset_.filters[filter] == Hdf5Filter::deflate) {
        unpacked_.resize(static_cast<std::size_t>(chunk_bytes_));
        inflate_chunk(stored_, unpacked_, dataset_.location, number);
        stored_.swap(unpacked_);
      } else {
        unshuffle(stored_, static_cast<std::size_t>(dataset_.element_bytes), unpacked_);
      }
    }
    validate(static_cast<std::int64_t>(stored_.size()) == chunk_bytes_,
             "{}: chunk {} has {} bytes instead of {}: the file is damaged", dataset_.location,
             number + 1, stored_.size(), chunk_bytes_);
    return stored_;
  }

 private:
  const File& file_;
  const StoredDataset& dataset_;
  std::int64_t chunk_bytes_;
  std::vector<std::byte> stored_, unpacked_;
};

/// Copies the elements of one chunk into rows of its dataset.
///
/// `part`: the elements of the chunk to copy, as a box of the chunk. `to`: the element of the rows
/// where the part begins. `strides`: elements of the dataset between neighbors in each dimension.
void copy_part(const StoredDataset& dataset, const std::vector<std::byte>& chunk,
               const Hdf5Box& part, const std::vector<std::int64_t>& strides, std::int64_t to,
               std::byte* rows) {
  const std::size_t rank = dataset.shape.size();
  // Dimensions that the chunk covers completely are adjacent in the dataset, too.
  std::size_t inner = rank - 1;
  std::int64_t run = part.count[inner];
  while (inner > 0 && dataset.chunk[inner] == dataset.shape[inner]) run *= part.count[--inner];
  std::vector<std::int64_t> chunk_strides(rank, 1);
  for (std::size_t d = rank; d-- > 1;) chunk_strides[d - 1] = chunk_strides[d] * dataset.chunk[d];
  std::vector<std::int64_t> position(inner, 0);
  for (bool more = part.elements() > 0; more;) {
    std::int64_t from_element = part.start[inner] * chunk_strides[inner], to_element = to;
    for (std::size_t d = 0; d < inner; ++d) {
      from_element += (part.start[d] + position[d]) * chunk_strides[d];
      to_element += position[d] * strides[d];
    }
    std::memcpy(rows + to_element * dataset.element_bytes,
                chunk.data() + from_element * dataset.element_bytes,
                static_cast<std::size_t>(run * dataset.element_bytes));
    more = false;
    for (std::size_t d = inner; d-- > 0 && !more;) {
      more = ++position[d] < part.count[d];
      if (!more) position[d] = 0;
    }
  }
}

/// Returns rows [first, last) of a chunked dataset. A row is one index of the first dimension.
std::vector<std::byte> unpack_rows(const File& file, const StoredDataset& dataset,
                                   std::int64_t first, std::int64_t last) {
  const std::vector<std::int64_t>&shape = dataset.shape, &chunk = dataset.chunk;
  const std::size_t rank = shape.size();
  std::vector<std::int64_t> grid(rank), strides(rank, 1);
  for (std::size_t d = 0; d < rank; ++d) grid[d] = (shape[d] - 1) / chunk[d] + 1;
  for (std::size_t d = rank; d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  std::int64_t chunks_per_row = 1;
  for (std::size_t d = 1; d < rank; ++d) chunks_per_row *= grid[d];
  std::vector<std::byte> rows(
      static_cast<std::size_t>((last - first) * strides[0] * dataset.element_bytes));
  ChunkReader reader(file, dataset);
  const std::int64_t begin = first / chunk[0] * chunks_per_row,
                     end = ((last - 1) / chunk[0] + 1) * chunks_per_row;
  for (std::int64_t number = begin; number < end; ++number) {
    const std::vector<std::byte>& elements = reader.read(static_cast<std::size_t>(number));
    // The part of the chunk that is in the rows and within the extents.
    Hdf5Box part{std::vector<std::int64_t>(rank, 0), chunk};
    std::int64_t rest = number, to = 0;
    for (std::size_t d = rank; d-- > 0;) {
      const std::int64_t corner = rest % grid[d] * chunk[d];
      rest /= grid[d];
      const std::int64_t low = d == 0 ? first : 0, high = d == 0 ? last : shape[d];
      part.start[d] = std::max<std::int64_t>(low - corner, 0);
      part.count[d] = std::min(chunk[d], high - corner) - part.start[d];
      to += (corner + part.start[d] - low) * strides[d];
    }
    copy_part(dataset, elements, part, strides, to, rows.data());
  }
  return rows;
}

/// Copies all runs from a source, converted to the type in memory.
template <class Source>
void copy_runs(Source&& source, const StoredDataset& dataset, std::span<const Hdf5Box> boxes,
               Hdf5Number memory, std::byte* out) {
  const bool same = is_same_type(dataset, memory);
  const ConvertRun convert = conversion_of(dataset, memory);
  // Long runs are converted in pieces, so that a window of the file stays small.
  const std::int64_t piece =
      same ? std::numeric_limits<std::int64_t>::max() : max_window_bytes / dataset.element_bytes;
  RunMerger(boxes, dataset.shape).for_each([&](Run run) {
    while (run.count > 0) {
      const Run part{run.first, std::min(run.count, piece)};
      if (same)
        source.copy(part, out);
      else
        convert(source.bytes_of(part), !dataset.native_order, part.count, out);
      out += part.count * size_of(memory);
      run.first += part.count;
      run.count -= part.count;
    }
  });
}

/// Throws InputError if the dataset has no numbers, or a box exceeds it.
void check_boxes(const StoredDataset& dataset, std::span<const Hdf5Box> boxes) {
  validate(dataset.is_number(), "{}: is not a numeric dataset", dataset.location);
  const std::size_t rank = dataset.shape.size();
  for (const Hdf5Box& box : boxes) {
    TRIREME_EXPECT(box.start.size() == rank && box.count.size() == rank);
    for (std::size_t i = 0; i < rank && box.elements() != 0; ++i) {
      validate(
          box.start[i] >= 0 && box.count[i] > 0 && box.start[i] <= dataset.shape[i] - box.count[i],
          "{}: elements {} to {} requested, but the extent is {}", dataset.location, box.start[i],
          box.start[i] + box.count[i], dataset.shape[i]);
    }
  }
}

}  // namespace

void read_values(const File& file, const StoredDataset& dataset, std::span<const Hdf5Box> boxes,
                 Hdf5Number memory, void* out) {
  check_boxes(dataset, boxes);
  // The rows that contain all boxes.
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = -1;
  for (const Hdf5Box& box : boxes) {
    if (box.elements() == 0) continue;
    first = std::min(first, box.start.empty() ? 0 : box.start[0]);
    last = std::max(last, box.start.empty() ? 1 : box.start[0] + box.count[0]);
  }
  if (last < 0) return;
  std::byte* to = static_cast<std::byte*>(out);
  switch (dataset.storage) {
    case StoredDataset::Storage::contiguous:
      return copy_runs(FileSource(file, dataset), dataset, boxes, memory, to);
    case StoredDataset::Storage::compact:
      return copy_runs(MemorySource(reinterpret_cast<const std::byte*>(dataset.values.data()), 0,
                                    dataset.element_bytes),
                       dataset, boxes, memory, to);
    case StoredDataset::Storage::chunked: {
      const std::vector<std::byte> rows = unpack_rows(file, dataset, first, last);
      return copy_runs(MemorySource(rows.data(), first * (dataset.elements() / dataset.shape[0]),
                                    dataset.element_bytes),
                       dataset, boxes, memory, to);
    }
  }
}

void read_values(const File& file, const StoredDataset& dataset,
                 std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                 Hdf5Number memory, void* out) {
  const Hdf5Box box{{start.begin(), start.end()}, {count.begin(), count.end()}};
  read_values(file, dataset, {&box, 1}, memory, out);
}

void read_values(const File& file, const StoredDataset& dataset, Hdf5Number memory, void* out) {
  read_values(file, dataset, std::vector<std::int64_t>(dataset.shape.size(), 0), dataset.shape,
              memory, out);
}

void convert_values(const StoredDataset& dataset, const std::byte* stored, bool swapped,
                    std::int64_t count, Hdf5Number memory, std::byte* out) {
  conversion_of(dataset, memory)(stored, swapped, count, out);
}

Hdf5Reader::Hdf5Reader(Hdf5Index index)
    : Hdf5Reader(std::make_shared<const Hdf5Index>(std::move(index))) {}

Hdf5Reader::Hdf5Reader(std::shared_ptr<const Hdf5Index> index)
    : index_(std::move(index)), file_(index_->path(), File::Mode::read) {
  // On another rank the file system may show another file.
  validate(file_.size() == index_->file_bytes(),
           "{}: has {} bytes, but had {} when its structure was read: it was changed meanwhile",
           index_->path(), file_.size(), index_->file_bytes());
}

}  // namespace trireme::io
