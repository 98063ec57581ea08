// SPDX-License-Identifier: Apache-2.0
//
// Fields of the table [data.augment]: values that are tables of numbers.
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "augment_fields.hpp"

namespace trireme::data {

using namespace keys;

namespace {

// Width / height of a crop.
constexpr double max_side_ratio = 100;
// Part of the area of an image.
constexpr double min_scale = 1e-6;
// Strength of brightness, contrast and saturation; above it nearly all images are black and white.
constexpr double max_jitter = 100;
// Beyond, the weights of mixed samples hardly differ from 0, 1/2 or 1.
constexpr NumberRange alpha_range{.min = 1e-3, .max = 1e3};

/// Appends the numbers of a TOML array to `values`. Returns an error message, or "".
std::string read_numbers(const Value* value, const char* name, std::vector<double>& values) {
  const auto list = value ? value->list() : std::nullopt;
  if (value && value->number())
    return fmt::format("{} must be a list; write {} = [{}], which is for all channels", name, name,
                       *value->number());
  if (!list || list->empty())
    return fmt::format("needs {} = [..], one number per channel or one for all", name);
  for (const Value& element : *list) {
    const auto number = element.number();
    if (!number || !std::isfinite(*number))
      return fmt::format("{} must contain only numbers", name);
    values.push_back(*number);
  }
  return "";
}

std::string toml_float_list(const std::vector<double>& values) {
  std::vector<std::string> list;
  for (const double value : values) list.push_back(toml_float(value));
  return fmt::format("[{}]", fmt::join(list, ", "));
}

/// Returns an error message unless the value is a table whose keys are all in `keys`, or "".
std::string table_error(const Value& given, const char* form,
                        const std::vector<std::string>& keys) {
  const auto table = given.table();
  if (!table) return given.wrong_type(fmt::format("a table {}", form));
  for (const auto& [key, value] : *table)
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      return fmt::format("{}: unknown key; the keys are \"{}\"", quoted(key),
                         fmt::join(keys, "\", \""));
  return "";
}

/// Returns whether a value turns an augmentation off: false or 0.
bool is_off(const Value& given) {
  const auto boolean = given.boolean();
  return (boolean && !*boolean) || given.number() == 0.0;
}

/// Reads the table of an augmentation with `read_keys`, or a value that turns it off. Returns an
/// error message, or "".
template <class Options, class ReadKeys>
std::string read_options(const Value& given, const char* form, const std::vector<std::string>& keys,
                         Options& options, ReadKeys&& read_keys) {
  Options found;
  if (!is_off(given)) {
    std::string wrong = table_error(given, form, keys);
    if (wrong.empty()) wrong = read_keys(*given.table(), found);
    if (!wrong.empty()) return wrong;
  }
  options = found;
  return "";
}

/// Reads a number of the range, if it is there; of an integer type a whole one. Returns an error
/// message, or "".
template <class T>
std::string read_number(const Table& table, const char* name, NumberRange range, T& number) {
  const Value* const given = find(table, name);
  if (!given) return "";
  if (std::is_integral_v<T> ? !given->integer() : !given->number())
    return fmt::format("{} must be a {}number", name, std::is_integral_v<T> ? "whole " : "");
  const double value = *given->number();
  if (!range.contains(value)) return fmt::format("{} = {}", name, range.range_error(value));
  number = static_cast<T>(value);
  return "";
}

/// Reads a side in pixels from 1 to max_model_side. Returns an error message, or "".
std::string read_side(const Table& table, const char* name, std::int64_t& side) {
  if (!table.contains(name)) return fmt::format("needs {}, a number of pixels", name);
  return read_number(table, name, between(1, max_model_side), side);
}

/// Reads name = [low, high] with both in the range, if it is there. Returns an error message,
/// or "".
std::string read_interval(const Table& table, const char* name, NumberRange range,
                          std::array<double, 2>& interval) {
  const Value* const given = find(table, name);
  if (!given) return "";
  std::vector<double> numbers;
  if (!read_numbers(given, name, numbers).empty() || numbers.size() != 2)
    return fmt::format("{} must be two numbers, as in {} = [{}, {}]", name, name, interval[0],
                       interval[1]);
  if (!range.contains(numbers[0]) || !range.contains(numbers[1]) || numbers[0] > numbers[1])
    return fmt::format(
        "{} = [{}, {}] is out of range; both must be at least {} and at most {}, the smaller one "
        "first",
        name, numbers[0], numbers[1], range.min, range.max);
  interval = {numbers[0], numbers[1]};
  return "";
}

std::string toml_interval(const std::array<double, 2>& interval) {
  return toml_float_list({interval[0], interval[1]});
}

}  // namespace

Field normalize(std::vector<double>& mean, std::vector<double>& deviation) {
  const auto read = [&mean, &deviation](const Value& given) -> std::string {
    if (std::string wrong = table_error(given, "{ mean = [..], std = [..] }", {"mean", "std"});
        !wrong.empty())
      return wrong;
    const Table table = *given.table();
    std::vector<double> means, deviations;
    if (std::string wrong = read_numbers(find(table, "mean"), "mean", means); !wrong.empty())
      return wrong;
    if (std::string wrong = read_numbers(find(table, "std"), "std", deviations); !wrong.empty())
      return wrong;
    if (means.size() != deviations.size())
      return fmt::format(
          "mean has {} numbers, std has {}; give equally many in both, or one for all",
          means.size(), deviations.size());
    for (const double value : deviations)
      if (value <= 0) return fmt::format("std = {} is out of range; must be more than 0", value);
    // Beyond, single precision overflows.
    constexpr double most = 1e30;
    for (const double value : means)
      if (std::abs(value) > most)
        return fmt::format("mean = {} is out of range; must be from -1e30 to 1e30", value);
    for (const double value : deviations)
      if (value < 1 / most || value > most)
        return fmt::format("std = {} is out of range; must be from 1e-30 to 1e30", value);
    mean = std::move(means);
    deviation = std::move(deviations);
    return "";
  };
  return {read,
          [&mean, &deviation] {
            return mean.empty() ? std::string()
                                : fmt::format("{{ mean = {}, std = {} }}", toml_float_list(mean),
                                              toml_float_list(deviation));
          },
          "table", "{ mean = [..], std = [..] }; std from 1e-30 to 1e30"};
}

Field random_crop(std::int64_t& padding) {
  const NumberRange padding_range = between(0, 1024);
  const auto read = [&padding, padding_range](const Value& given) -> std::string {
    const auto table = given.table();
    const Value* const inner = table ? find(*table, "padding") : &given;
    if (!inner || (table && table->size() != 1))
      return "must be the padding in pixels, as in 4 or { padding = 4 }";
    return integer(padding, padding_range).read(*inner);
  };
  return {read, [&padding] { return fmt::format("{}", padding); }, "integer or table",
          padding_range.requirement(0) + ", or { padding = 4 }"};
}

Field random_resized_crop(RandomResizedCrop& crop) {
  constexpr const char* form = "{ size = 224, scale = [0.08, 1.0], ratio = [0.75, 1.3333] }";
  const auto read_keys = [](const Table& table, RandomResizedCrop& found) {
    std::string wrong = read_side(table, "size", found.size);
    if (wrong.empty()) wrong = read_interval(table, "scale", between(min_scale, 1), found.scale);
    if (wrong.empty())
      wrong =
          read_interval(table, "ratio", between(1 / max_side_ratio, max_side_ratio), found.ratio);
    return wrong;
  };
  const auto read = [&crop, read_keys](const Value& given) {
    return read_options(given, form, {"size", "scale", "ratio"}, crop, read_keys);
  };
  return {read,
          [&crop] {
            return crop.size == 0
                       ? std::string()
                       : fmt::format("{{ size = {}, scale = {}, ratio = {} }}", crop.size,
                                     toml_interval(crop.scale), toml_interval(crop.ratio));
          },
          "table",
          fmt::format("{}; size 1 to {}, scale {} to 1, ratio 1/{} to {}; false or 0 turns it off",
                      form, max_model_side, min_scale, max_side_ratio, max_side_ratio)};
}

Field evaluation_crop(EvaluationCrop& crop) {
  constexpr const char* form = "{ resize = 256, crop = 224 }";
  const auto read_keys = [](const Table& table, EvaluationCrop& found) {
    std::string wrong = read_side(table, "resize", found.resize);
    if (wrong.empty()) wrong = read_side(table, "crop", found.crop);
    if (wrong.empty() && found.crop > found.resize)
      wrong = fmt::format(
          "crop = {} is more than resize = {}, the shorter side of the image that it is cut from; "
          "use resize = {} or more",
          found.crop, found.resize, found.crop);
    return wrong;
  };
  const auto read = [&crop, read_keys](const Value& given) {
    return read_options(given, form, {"resize", "crop"}, crop, read_keys);
  };
  return {read,
          [&crop] {
            return crop.crop == 0
                       ? std::string()
                       : fmt::format("{{ resize = {}, crop = {} }}", crop.resize, crop.crop);
          },
          "table",
          fmt::format("{}; both 1 to {}, crop at most resize; false or 0 turns it off", form,
                      max_model_side)};
}

Field color_jitter(ColorJitter& jitter) {
  constexpr const char* form = "{ brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }";
  const auto read_keys = [form](const Table& table, ColorJitter& found) {
    const NumberRange factors = between(0, max_jitter);
    std::string wrong = read_number(table, "brightness", factors, found.brightness);
    if (wrong.empty()) wrong = read_number(table, "contrast", factors, found.contrast);
    if (wrong.empty()) wrong = read_number(table, "saturation", factors, found.saturation);
    if (wrong.empty()) wrong = read_number(table, "hue", between(0, 0.5), found.hue);
    if (wrong.empty() && table.empty())
      wrong = fmt::format(
          "{{}} changes nothing, because keys that are left out are 0; give one or more, as in {}, "
          "or false to turn it off",
          form);
    return wrong;
  };
  const auto read = [&jitter, read_keys](const Value& given) {
    return read_options(given, form, {"brightness", "contrast", "saturation", "hue"}, jitter,
                        read_keys);
  };
  return {read,
          [&jitter] {
            return !jitter.is_on()
                       ? std::string()
                       : fmt::format(
                             "{{ brightness = {}, contrast = {}, saturation = {}, hue = {} }}",
                             toml_float(jitter.brightness), toml_float(jitter.contrast),
                             toml_float(jitter.saturation), toml_float(jitter.hue));
          },
          "table", std::string(form) + "; hue at most 0.5; false or 0 turns it off"};
}

Field rand_augment(RandAugment& options) {
  constexpr const char* form = "{ count = 2, magnitude = 9 }";
  const auto read_keys = [](const Table& table, RandAugment& found) {
    found.count = 2;
    std::string wrong =
        read_number(table, "count", between(1, max_rand_augment_count), found.count);
    if (wrong.empty())
      wrong =
          read_number(table, "magnitude", between(0, max_rand_augment_magnitude), found.magnitude);
    return wrong;
  };
  const auto read = [&options, read_keys](const Value& given) {
    return read_options(given, form, {"count", "magnitude"}, options, read_keys);
  };
  return {read,
          [&options] {
            return options.count == 0 ? std::string()
                                      : fmt::format("{{ count = {}, magnitude = {} }}",
                                                    options.count, options.magnitude);
          },
          "table",
          fmt::format("{}; count 1 to {}, magnitude 0 to {}; false or 0 turns it off", form,
                      max_rand_augment_count, max_rand_augment_magnitude)};
}

Field random_erasing(RandomErasing& erase) {
  constexpr const char* form = "{ probability = 0.5, scale = [0.02, 0.33], ratio = [0.3, 3.3] }";
  const auto read_keys = [](const Table& table, RandomErasing& found) {
    found.probability = 0.5;
    std::string wrong = read_number(table, "probability", between(0, 1), found.probability);
    if (wrong.empty()) wrong = read_interval(table, "scale", between(min_scale, 1), found.scale);
    if (wrong.empty())
      wrong =
          read_interval(table, "ratio", between(1 / max_side_ratio, max_side_ratio), found.ratio);
    return wrong;
  };
  const auto read = [&erase, read_keys](const Value& given) {
    return read_options(given, form, {"probability", "scale", "ratio"}, erase, read_keys);
  };
  return {read,
          [&erase] {
            return erase.probability == 0
                       ? std::string()
                       : fmt::format("{{ probability = {}, scale = {}, ratio = {} }}",
                                     toml_float(erase.probability), toml_interval(erase.scale),
                                     toml_interval(erase.ratio));
          },
          "table", std::string(form) + "; each key optional; false or 0 turns it off"};
}

Field mixing_alpha(double& alpha) {
  Field field = real(alpha, alpha_range);
  field.read = [&alpha, read = std::move(field.read)](const Value& given) {
    if (!is_off(given)) return read(given);
    alpha = 0;
    return std::string();
  };
  field.range += "; false or 0 turns it off";
  return field;
}

}  // namespace trireme::data
