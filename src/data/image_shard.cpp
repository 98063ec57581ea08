#include "image_shard.hpp"

#include <algorithm>
#include <cstring>

#include "shard_header.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t largest_run_bytes = std::int64_t{64} << 20;
constexpr std::int64_t largest_label = (std::int64_t{1} << 24) - 1;  // a classifier of more classes does not fit anywhere; a damaged label does

}  // namespace

template <class Read>
RowCache::Rows RowCache::get(const void* shard, std::int64_t run, Read&& read) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->shard != shard || entry->run != run) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->rows;
  }
  Rows rows = read();
  entries_.push_front({shard, run, rows});
  held_bytes_ += static_cast<std::int64_t>(rows->size());
  while (held_bytes_ > budget_bytes_ && entries_.size() > 1) {
    held_bytes_ -= static_cast<std::int64_t>(entries_.back().rows->size());
    entries_.pop_back();
  }
  return rows;
}

ImageShard::ImageShard(const std::string& path, std::shared_ptr<RowCache> cache) : path_(path), cache_(std::move(cache)) {
  io::Hdf5File file = io::Hdf5File::open(path);
  header_ = read_header(file);
  validate(header_.kind == DatasetKind::images, "{}: holds {}, which this version does not read; it reads shards of images (uint8 pixels)", path,
           to_string(header_.kind));
  read_labels(file);
  io::Hdf5Dataset images = file.dataset("images");
  offset_ = images.description().offset;
  if (offset_ >= 0) {
    file_ = io::File(path, io::File::Mode::read);
    return;
  }
  const std::int64_t chunk_rows = images.description().chunk.empty() ? header_.samples : images.description().chunk[0];
  run_rows_ = std::clamp<std::int64_t>(std::min(chunk_rows, header_.samples), 1, std::max<std::int64_t>(1, largest_run_bytes / sample_bytes()));
  images_.emplace(std::move(images));
  container_.emplace(std::move(file));
}

void ImageShard::read_labels(const io::Hdf5File& file) {
  const io::Hdf5Dataset stored = file.dataset("labels");
  const io::Hdf5Description& description = stored.description();
  validate(description.kind == io::Hdf5Description::Kind::integer, "{}: labels are whole numbers (int32)", stored.place());
  validate(description.shape.size() == 1 && description.shape[0] == header_.samples, "{}: extents [{}] do not fit the {} images", stored.place(),
           fmt::join(description.shape, ", "), header_.samples);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(header_.samples));
  if (!wide.empty()) stored.read_all(io::Hdf5Number::int64, wide.data());
  const std::int64_t most = header_.classes.empty() ? largest_label : static_cast<std::int64_t>(header_.classes.size()) - 1;
  labels_.reserve(wide.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    validate(wide[i] >= 0 && wide[i] <= most, "{}: label {} of sample {} is no class; labels are 0 to {}", stored.place(), wide[i], i, most);
    labels_.push_back(static_cast<std::int32_t>(wide[i]));
  }
}

RowCache::Rows ImageShard::run_of_rows(std::int64_t run) const {
  return cache_->get(this, run, [&] {
    const std::int64_t first = run * run_rows_, count = std::min(run_rows_, header_.samples - first);
    auto rows = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(count * sample_bytes()));
    const std::int64_t start[4] = {first, 0, 0, 0}, extent[4] = {count, header_.height, header_.width, header_.channels};
    images_->read(start, extent, io::Hdf5Number::uint8, rows->data());
    return RowCache::Rows(std::move(rows));
  });
}

void ImageShard::read(std::int64_t first, std::int64_t count, std::byte* images) const {
  TRIREME_EXPECT(first >= 0 && count >= 0 && first + count <= header_.samples);
  const std::int64_t bytes = sample_bytes();
  if (offset_ >= 0) {
    file_.read_at(offset_ + first * bytes, images, count * bytes);
    return;
  }
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t run = (first + done) / run_rows_, inside = (first + done) % run_rows_;
    const std::int64_t rows = std::min(count - done, run_rows_ - inside);
    const RowCache::Rows held = run_of_rows(run);
    std::memcpy(images + done * bytes, held->data() + inside * bytes, static_cast<std::size_t>(rows * bytes));
    done += rows;
  }
}

}  // namespace trireme::data
