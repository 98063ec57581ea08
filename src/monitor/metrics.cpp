#include "trireme/monitor/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "append_file.hpp"
#include "trireme/base/check.hpp"

namespace trireme::monitor {
namespace {

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

/// Bytes of the file up to and with its last newline.
std::int64_t whole_lines(int file, std::int64_t size, const std::string& path) {
  char buffer[4096];
  std::int64_t end = size;
  while (end > 0) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - static_cast<std::int64_t>(sizeof buffer));
    const ssize_t got = ::pread(file, buffer, static_cast<std::size_t>(end - begin), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    ensure(got == end - begin, "cannot read {}: {}", path, got < 0 ? std::strerror(errno) : "it changed while it was read");
    for (std::int64_t i = got; i > 0; --i) {
      if (buffer[i - 1] == '\n') return begin + i;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

Row::Row(std::string kind) : kind_(std::move(kind)), text_("\"kind\": " + json_string(kind_)) {}

Row& Row::add_json(const std::string& key, const std::string& json) {
  text_ += ", " + json_string(key) + ": " + json;
  return *this;
}

Row& Row::add(const std::string& key, double value) { return add_json(key, std::isfinite(value) ? fmt::format("{}", value) : "null"); }
Row& Row::add(const std::string& key, std::int64_t value) { return add_json(key, std::to_string(value)); }
Row& Row::add(const std::string& key, bool value) { return add_json(key, value ? "true" : "false"); }
Row& Row::add(const std::string& key, const std::string& value) { return add_json(key, json_string(value)); }
Row& Row::add(const std::string& key, const char* value) { return add_json(key, json_string(value)); }

std::string Row::line() const { return "{" + text_ + "}\n"; }

Metrics::Metrics(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  ensure(file_ >= 0, "cannot open {}: {}", path, std::strerror(errno));
  try {
    struct stat status {};
    ensure(::fstat(file_, &status) == 0, "cannot look at {}: {}", path, std::strerror(errno));
    const std::int64_t whole = whole_lines(file_, status.st_size, path);
    if (whole < status.st_size) ensure(::ftruncate(file_, static_cast<off_t>(whole)) == 0, "cannot cut the torn last line of {}: {}", path, std::strerror(errno));
  } catch (...) {
    ::close(file_);
    throw;
  }
}

Metrics::~Metrics() {
  if (file_ >= 0) ::close(file_);
}

Metrics::Metrics(Metrics&& other) noexcept : file_(std::exchange(other.file_, -1)), path_(std::move(other.path_)) {}

Metrics& Metrics::operator=(Metrics&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(path_, other.path_);
  return *this;
}

void Metrics::write(const Row& row) {
  if (file_ >= 0) append(file_, row.line(), path_);
}

}  // namespace trireme::monitor
