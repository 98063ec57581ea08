// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/file_pool.hpp"

#include "trireme/base/check.hpp"

namespace trireme::io {

FilePool::FilePool(std::size_t max_open)
    : max_open_(
          static_cast<std::size_t>(raise_open_file_limit(static_cast<std::int64_t>(max_open)))) {
  TRIREME_EXPECT(max_open > 0);
}

std::shared_ptr<const File> FilePool::find(const std::string& path) {
  const auto place = by_path_.find(path);
  if (place == by_path_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, place->second);
  return recent_.front();
}

std::shared_ptr<const File> FilePool::open(const std::string& path,
                                           const std::optional<FileStamp>& stamp) {
  std::unique_lock lock(mutex_);
  if (auto file = find(path)) return file;
  // Close before opening, so that few more than max_open_ files are open.
  while (recent_.size() >= max_open_) {
    by_path_.erase(recent_.back()->path());
    recent_.pop_back();
  }
  // A slow file system must not stop the threads whose files are open.
  lock.unlock();
  auto opened_file = std::make_shared<const File>(path, File::Mode::read);
  validate(!stamp || opened_file->stamp() == *stamp,
           "{}: was changed since the run read its structure", path);
  lock.lock();
  if (auto file = find(path)) return file;  // another thread was faster
  recent_.push_front(opened_file);
  by_path_.emplace(path, recent_.begin());
  return opened_file;
}

}  // namespace trireme::io
