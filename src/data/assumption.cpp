// SPDX-License-Identifier: Apache-2.0
//
// Reads the description of a dataset that is assumed, and makes the DatasetInfo that its shards
// would have. `trireme check --assume` uses it in the place of a folder.
#include "trireme/data/assumption.hpp"

#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "data/shards/shard_limits.hpp"
#include "data/sources/channel_order.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

// More samples or tokens than any dataset has.
constexpr std::int64_t max_count = 1'000'000'000'000'000;

constexpr const char* forms =
    "write images:COUNT,HxWxC,CLASSES, fields:COUNT,HxWxC,CLASSES, fields:COUNT,HxWxC,values:N (or "
    "classes:N, pixels:N, field:N) or tokens:COUNT,VOCABULARY, as in images:60000,28x28x1,10";

/// Returns "values:" and the like, in front of the number of outputs; nothing for one class.
std::string prefix_of(const Answer& answer) {
  return answer.is_one_class() ? "" : fmt::format("{}:", answer.word);
}

std::vector<std::string_view> split(std::string_view text, char delimiter) {
  std::vector<std::string_view> parts;
  for (std::size_t end = text.find(delimiter); end != std::string_view::npos;
       end = text.find(delimiter)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

/// Returns the number of a part. Throws InputError unless it is a whole number from 1 to `max`.
std::int64_t number(const char* part, std::string_view text, std::int64_t max) {
  const std::optional<std::int64_t> value = parse_integer(text);
  validate(value && *value >= 1 && *value <= max, "{} is \"{}\"; use a whole number from 1 to {}",
           part, printable(text), max);
  return *value;
}

/// Reads "28x28x1" or "anyx3".
void parse_extents(std::string_view text, Assumption& assumption) {
  const std::vector<std::string_view> parts = split(text, 'x');
  const bool any = parts.size() == 2 && parts[0] == "any";
  validate(any || parts.size() == 3,
           "\"{}\" is no size; write HxWxC (height, width, channels) as in 28x28x1, or anyx3 for "
           "encoded images of any size",
           printable(text));
  if (any) {
    assumption.kind = DatasetKind::encoded_images;
  } else {
    assumption.height = number("the height", parts[0], max_extent);
    assumption.width = number("the width", parts[1], max_extent);
  }
  assumption.channels = number("the number of channels", parts.back(), max_channels);
  validate(!looks_channels_first(
               {assumption.count, assumption.height, assumption.width, assumption.channels}),
           "\"{}\" looks like CxHxW, the order of PyTorch; write HxWxC: {}x{}x{}", printable(text),
           assumption.width, assumption.channels, assumption.height);
  validate(!any || assumption.channels == 3,
           "\"{}\": encoded images are decoded to 3 channels; write anyx3", printable(text));
}

}  // namespace

Assumption parse_assumption(const std::string& text) {
  const std::string_view whole = text;
  const std::size_t colon = whole.find(':');
  const std::string_view kind = whole.substr(0, colon);
  const std::vector<std::string_view> parts =
      split(colon == std::string_view::npos ? "" : whole.substr(colon + 1), ',');
  Assumption assumption;
  if ((kind == "images" || kind == "fields") && parts.size() == 3) {
    assumption.is_float = kind == "fields";
    assumption.count = number("COUNT", parts[0], max_count);
    parse_extents(parts[1], assumption);
    validate(!assumption.is_float || assumption.kind == DatasetKind::images,
             "fields have one size; write HxWxC (height, width, channels) as in 64x64x2");
    for (const Answer& answer : target_answers()) {
      const std::string prefix = prefix_of(answer);
      if (!assumption.is_float || prefix.empty() || !parts[2].starts_with(prefix)) continue;
      assumption.answer = answer.kind;
      assumption.classes = number("N", parts[2].substr(prefix.size()), max_target_numbers);
      return assumption;
    }
    validate(parts[2].find(':') == std::string_view::npos, "\"{}\" is no target; {}",
             printable(parts[2]), forms);
    assumption.classes = number("CLASSES", parts[2], static_cast<std::int64_t>(max_classes));
    return assumption;
  }
  validate(kind == "tokens" && parts.size() == 2, "{}", forms);
  assumption.kind = DatasetKind::tokens;
  assumption.count = number("COUNT", parts[0], max_count);
  assumption.vocabulary = number("VOCABULARY", parts[1], max_vocabulary);
  return assumption;
}

std::string to_string(const Assumption& assumption) {
  if (assumption.kind == DatasetKind::tokens)
    return fmt::format("tokens:{},{}", assumption.count, assumption.vocabulary);
  const std::string size = assumption.kind == DatasetKind::encoded_images
                               ? "any"
                               : fmt::format("{}x{}", assumption.height, assumption.width);
  return fmt::format(
      "{}:{},{}x{},{}", assumption.is_float ? "fields" : "images", assumption.count, size,
      assumption.channels,
      fmt::format("{}{}", prefix_of(answer_of(assumption.answer)), assumption.classes));
}

DatasetInfo describe(const Assumption& assumption, const SampleForm& form) {
  const std::int64_t context = form.context;
  const ImageExtents extents = extents_of(form.image, {assumption.height, assumption.width});
  DatasetInfo info;
  info.kind = assumption.kind;
  info.samples = assumption.count;
  info.height = extents.height;
  info.width = extents.width;
  info.channels = assumption.channels;
  const Answer &assumed = answer_of(assumption.answer), &wanted = form.target.answer();
  info.target.count = assumption.classes;
  info.target_kind = assumed.kind;
  if (assumption.is_float) info.pixel_type = DType::float32;
  validate(assumption.kind == DatasetKind::tokens || &assumed == &wanted,
           "is data for target.kind = \"{}\", but it is \"{}\"; write {}", assumed.word,
           wanted.word,
           wanted.is_one_class() ? "fields:COUNT,HxWxC,CLASSES"
                                 : fmt::format("fields:COUNT,HxWxC,{}N", prefix_of(wanted)));
  if (assumed.has_float_targets) check_target_size(form.target, assumption.classes);
  validate(wanted.kind != AnswerKind::pixels || form.target.classes == assumption.classes,
           "has {} classes, but target.classes = {}", assumption.classes, form.target.classes);
  if (assumption.kind != DatasetKind::tokens) return info;
  info.context = context;
  info.vocabulary = assumption.vocabulary;
  info.tokens = assumption.count;
  info.samples = context > 0 ? (assumption.count - 1) / context : 0;
  validate(info.samples > 0 || context == 0,
           "{} contain no sample of context {}; at least {} are needed",
           counted(assumption.count, "token", "tokens"), context, context + 1);
  return info;
}

}  // namespace trireme::data
