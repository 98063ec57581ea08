// SPDX-License-Identifier: Apache-2.0
//
// Complete verification of a checkpoint, for `trireme verify`. compute_digests() is in read.cpp.
#include "trireme/checkpoint/verify.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::checkpoint {

std::string compare_digests(const Contents& contents,
                            const std::vector<Contents::Entry>& computed) {
  for (std::size_t i = 0; i < computed.size(); ++i) {
    const Contents::Entry& stored = contents.tensors[i];
    if (stored.has_digest && stored.digest != computed[i].digest)
      return fmt::format("the values of {} do not match its digest ({:016x}, stored {:016x})",
                         printable(stored.path), computed[i].digest, stored.digest);
  }
  return "";
}

std::string verify_values(const io::Hdf5Reader& reader) {
  const Contents contents = read_contents(reader.index());
  const std::string mismatch = compare_digests(contents, compute_digests(reader));
  if (!mismatch.empty()) return mismatch;
  const bool has_digests =
      std::any_of(contents.tensors.begin(), contents.tensors.end(),
                  [](const Contents::Entry& tensor) { return tensor.has_digest; });
  return has_digests ? "" : "no checksums";
}

}  // namespace trireme::checkpoint
