#include "trireme/io/file_pool.hpp"

#include "trireme/base/expect.hpp"

namespace trireme::io {

FilePool::FilePool(std::size_t max_open)
    : max_open_(
          static_cast<std::size_t>(raise_open_file_limit(static_cast<std::int64_t>(max_open)))) {
  TRIREME_EXPECT(max_open > 0);
}

std::shared_ptr<const File> FilePool::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (const auto place = by_path_.find(path); place != by_path_.end()) {
    recent_.splice(recent_.begin(), recent_, place->second);
    return recent_.front();
  }
  // Close before opening, so that at most max_open_ files are open.
  while (recent_.size() >= max_open_) {
    by_path_.erase(recent_.back()->path());
    recent_.pop_back();
  }
  recent_.push_front(std::make_shared<const File>(path, File::Mode::read));
  by_path_.emplace(path, recent_.begin());
  return recent_.front();
}

}  // namespace trireme::io
