#include "trireme/checkpoint/verify.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::checkpoint {

std::string verify_checkpoint(const std::string& path) {
  const std::string damage = check_seal(path);
  if (!damage.empty() && damage != "no seal") return damage;
  const Contents contents = read_contents(path);
  const std::vector<Contents::Entry> computed = compute_digests(path);
  bool any = damage.empty();
  for (std::size_t i = 0; i < computed.size(); ++i) {
    const Contents::Entry& stored = contents.tensors[i];
    any = any || stored.has_digest;
    if (stored.has_digest && stored.digest != computed[i].digest) {
      return fmt::format("the values of {} do not match its digest ({:016x}, stored {:016x})", printable(stored.path), computed[i].digest, stored.digest);
    }
  }
  return any ? "" : "no checksums";
}

}  // namespace trireme::checkpoint
