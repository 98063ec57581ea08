// SPDX-License-Identifier: Apache-2.0
//
// Built instead of sentencepiece.cpp if the library is not installed.
#include "trireme/base/check.hpp"
#include "trireme/data/tokens/tokenizer.hpp"

namespace trireme::data {
namespace {

constexpr const char* missing =
    "this build of Trireme was made without SentencePiece; install it (Debian: libsentencepiece-dev"
    " and libprotobuf-dev) and build again, or take bytes as tokens";

}  // namespace

bool has_sentencepiece() { return false; }

std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string&, const std::string& place) {
  throw InputError(place + ": " + missing);
}

std::string train_tokenizer(const std::vector<std::string>&, std::int64_t) {
  throw InputError("--train-tokenizer: " + std::string(missing));
}

}  // namespace trireme::data
