// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::app {

/// Trains a SentencePiece model in a child process (data::train_tokenizer()), because the trainer
/// ends its process on texts that it cannot use. `folder`: for files that are passed between the
/// processes, and removed. Returns the bytes of the model. Throws InputError, which names the
/// sources.
std::string train_tokenizer_apart(const std::vector<std::string>& lines, std::int64_t vocabulary,
                                  const std::filesystem::path& folder,
                                  const std::vector<std::string>& sources);

}  // namespace trireme::app
