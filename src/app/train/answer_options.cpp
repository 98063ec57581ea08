// SPDX-License-Identifier: Apache-2.0
#include "answer_options.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::app {
namespace {

/// An option that needs one class for each sample.
struct ClassOption {
  const char* name;
  const char* of_text;  ///< why it does not go together with a language model
};
constexpr const char* losses_alone = "of a language model only the loss of each token is kept";
constexpr ClassOption class_options[] = {
    {"--confusion", "a language model has no classes to confuse"},
    {"--worst", "a language model has no images to draw"},
    {"--top", losses_alone},
    {"--logits", losses_alone},
    {"--flip", "a language model has no images to mirror"}};

}  // namespace

void validate_answer_options(const Answer& answer, const std::vector<std::string>& given) {
  if (answer.is_one_class()) return;
  for (const auto& [name, of_text] : class_options) {
    if (std::find(given.begin(), given.end(), name) == given.end()) continue;
    validate(!answer.is_tokens(), "{}: {}; leave the option out", name, of_text);
    validate(false,
             "{}: needs one class for each sample, but target.kind is \"{}\"; leave the option out",
             name, answer.word);
  }
}

}  // namespace trireme::app
