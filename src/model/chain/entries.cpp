// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes model.blocks, the list of blocks of a chain: keys and ranges of each kind.
//
// [[model.blocks]] and blocks = [{ ... }] are the same in TOML. The resolved deck has the second
// form, because it has one line for each key.
#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "parts.hpp"
#include "trireme/keys/table_fields.hpp"
#include "trireme/model/family.hpp"

namespace trireme::model::chain {

using namespace keys;

namespace {

// oneDNN has no fast convolutions of larger kernels (20 times slower at 16 than at 15).
constexpr double max_kernel = 15, max_dilation = 255, max_patch = 1024, max_padding = 255,
                 max_pool_kernel = 15, max_factor = 64, max_gain = 1e6;

/// The words of all kinds, in the order of Kind.
template <std::size_t... index>
std::vector<std::string> words_of(std::index_sequence<index...>) {
  return {std::variant_alternative_t<index, Kind>::word...};
}
const std::vector<std::string>& kind_words() {
  static const std::vector<std::string> words =
      words_of(std::make_index_sequence<std::variant_size_v<Kind>>());
  return words;
}
/// Returns the kind of this index with its defaults.
template <std::size_t index = 0>
Kind kind_at(std::size_t wanted) {
  if constexpr (index + 1 < std::variant_size_v<Kind>)
    if (wanted != index) return kind_at<index + 1>(wanted);
  return Kind(std::in_place_index<index>);
}

template <class Form>
using Words = std::vector<std::pair<std::string, Form>>;
const Words<NormForm> norm_words = {{"batch", NormForm::batch},
                                    {"group", NormForm::group},
                                    {"layer", NormForm::layer},
                                    {"rms", NormForm::rms}};
const Words<ActivationForm> activation_words = {
    {"relu", ActivationForm::relu}, {"gelu", ActivationForm::gelu}, {"silu", ActivationForm::silu}};
const Words<PoolForm> pool_words = {
    {"max", PoolForm::max}, {"mean", PoolForm::mean}, {"global", PoolForm::global}};
template <class Form>
std::string word_of(const Words<Form>& words, Form form) {
  return std::ranges::find(words, form, &std::pair<std::string, Form>::second)->first;
}

AppliesTo applies(bool is_met, const char* condition) { return {is_met, condition, ""}; }

/// "same", the rows and columns on each side, or a list of those before and after.
Field padding_field(std::optional<ops::Padding>& value) {
  static constexpr const char* wanted = "\"same\", a number of pixels, or [before, after]";
  const NumberRange range = between(0, max_padding);
  const auto read = [&value, range](const Value& given) -> std::string {
    if (given.string() == "same") {
      value.reset();
      return "";
    }
    std::vector<std::int64_t> pixels;
    if (const auto list = given.list()) {
      for (const Value& element : *list)
        if (element.integer()) pixels.push_back(*element.integer());
      if (pixels.size() != 2 || list->size() != 2) return fmt::format("must be {}", wanted);
    } else if (const auto both = given.integer()) {
      pixels = {*both, *both};
    } else {
      return given.wrong_type(wanted);
    }
    for (const std::int64_t count : pixels)
      if (!range.contains(static_cast<double>(count)))
        return range.range_error(static_cast<double>(count));
    value = ops::Padding(pixels[0], pixels[1]);
    return "";
  };
  const auto write = [&value]() -> std::string {
    if (!value) return "\"same\"";
    return value->before == value->after ? fmt::format("{}", value->before)
                                         : fmt::format("[{}, {}]", value->before, value->after);
  };
  return {read, write, "word, integer or list", wanted};
}

/// A table { kind, gain }. Without it the blocks around a block decide.
Field start_field(std::optional<Start>& value) {
  const auto visit = [](Visitor& v, Start& start) {
    v.field({"kind", "Selects the distribution.", {}, "name one, as in kind = \"he\""},
            choice<Distribution>(start.kind, {{"he", Distribution::he},
                                              {"glorot", Distribution::glorot},
                                              {"normal", Distribution::normal},
                                              {"uniform", Distribution::uniform},
                                              {"zero", Distribution::zero}}));
    v.field({"gain", "Multiplies the deviation.",
             applies(start.kind != Distribution::zero, "kinds other than \"zero\"")},
            real(start.gain, {.min = 0, .max = max_gain, .min_open = true}));
  };
  const auto read = [&value, visit](const Value& given) -> std::string {
    const auto table = given.table();
    if (!table) return given.wrong_type("a table, as in { kind = \"he\", gain = 1.0 }");
    Start start;
    std::string wrong = read_table(*table, [&](Visitor& v) { visit(v, start); });
    if (wrong.empty()) value = start;
    return wrong;
  };
  const auto write = [&value, visit] {
    return value ? write_table([&](Visitor& v) { visit(v, *value); }) : std::string();
  };
  return {read, write, "table", "{ kind = \"he\", gain = 1.0 }"};
}

void visit_start(Visitor& v, std::optional<Start>& value) {
  v.field({"init", "Sets the distribution of the initial weights."}, start_field(value));
}

// The keys of each kind.

void visit(Visitor& v, Conv& conv) {
  v.field({"channels", "Sets the channels of the output.", {}, "give those of the output"},
          integer(conv.channels, between(1, max_width)));
  v.field({"kernel", "Sets the rows and columns of the kernel.", {}, "give its rows and columns"},
          integer(conv.kernel, between(1, max_kernel)));
  v.field({"stride", "Sets the pixels of a step."},
          omitted_if_default<std::int64_t>(conv.stride, 1,
                                           integer(conv.stride, between(1, max_kernel))));
  v.field({"dilation", "Sets the pixels from one tap of the kernel to the next."},
          omitted_if_default<std::int64_t>(conv.dilation, 1,
                                           integer(conv.dilation, between(1, max_dilation))));
  v.field({"padding", "Sets the rows and columns around the image."},
          left_out_if(!conv.padding, padding_field(conv.padding)));
  v.field({"padding_mode", "Selects what is around the image: zeros, or the image again."},
          omitted_if_default(
              conv.padding_mode, PaddingMode::zeros,
              choice<PaddingMode>(conv.padding_mode, {{"zeros", PaddingMode::zeros},
                                                      {"periodic", PaddingMode::periodic}})));
  v.field({"bias", "Adds a trained number to each channel."},
          omitted_if_default(conv.bias, true, flag(conv.bias)));
  visit_start(v, conv.init);
}

void visit(Visitor& v, Norm& norm) {
  v.field({"norm", "Selects the numbers that are normalized together."},
          choice(norm.form, norm_words));
  v.field({"groups", "Sets the groups of channels.",
           applies(norm.form == NormForm::group, "norm = \"group\"")},
          optional_integer(norm.groups, between(1, max_width)));
  v.field({"epsilon", "Sets the number that is added to the variance.",
           applies(norm.of_rows(), "norm = \"layer\" or \"rms\"")},
          omitted_if_default(norm.epsilon, 1e-5, real(norm.epsilon, between(1e-12, 1))));
  v.field({"zero_init", "Starts the scale at 0."},
          omitted_if_default(norm.zero_init, false, flag(norm.zero_init)));
}

void visit(Visitor& v, Activation& activation) {
  v.field({"activation", "Selects the function."}, choice(activation.form, activation_words));
}

void visit(Visitor& v, Pool& pool) {
  v.field({"pool", "Selects maximum, mean, or the mean over all pixels or tokens."},
          choice(pool.form, pool_words));
  const AppliesTo windows = applies(pool.form != PoolForm::global, "pool = \"max\" or \"mean\"");
  v.field({"kernel", "Sets the rows and columns of a window.", windows},
          integer(pool.kernel, between(2, max_pool_kernel)));
  v.field({"stride", "Sets the pixels of a step.", windows},
          optional_integer(pool.stride, between(1, max_pool_kernel)));
  v.field({"padding", "Sets the pixels around the image.", windows},
          omitted_if_default<std::int64_t>(pool.padding, 0,
                                           integer(pool.padding, between(0, max_pool_kernel / 2))));
}

void visit(Visitor& v, Upsample& upsample) {
  v.field({"factor",
           "Sets the rows and columns that each pixel becomes.",
           {},
           "give the rows and columns that each pixel becomes"},
          integer(upsample.factor, between(2, max_factor)));
}

void visit(Visitor& v, Linear& linear) {
  v.field({"width", "Sets the channels of the output.", {}, "give the channels of the output"},
          integer(linear.width, between(1, max_length)));
  v.field({"bias", "Adds a trained number to each channel."},
          omitted_if_default(linear.bias, true, flag(linear.bias)));
  visit_start(v, linear.init);
}

void visit(Visitor& v, Dropout& dropout) {
  v.field(
      {"rate", "Sets the probability that training drops an element.", {}, "give a probability"},
      real(dropout.rate, {.min = 0, .max = 1, .min_open = true, .max_open = true}));
}

void visit(Visitor& v, Patches& patches) {
  v.field({"patch", "Sets the rows and columns of a patch.", {}, "give its rows and columns"},
          integer(patches.patch, between(1, max_patch)));
  v.field({"width", "Sets the channels of a token.", {}, "give the channels of a token"},
          integer(patches.width, between(1, max_width)));
  visit_start(v, patches.init);
}

void visit(Visitor& v, Positions& positions) { visit_start(v, positions.init); }

void visit(Visitor& v, Attention& attention) {
  v.field({"heads", "Sets the number of heads.", {}, "give their number"},
          integer(attention.heads, between(1, max_width)));
  visit_start(v, attention.init);
}

void visit(Visitor& /*v*/, Flatten& /*values*/) {}
void visit(Visitor& /*v*/, Transpose& /*values*/) {}

/// Where an entry stands: the name of its list, the number of lists around it, and whether the
/// lines of the file are known.
struct Place {
  std::string list;
  int depth = 0;
  bool has_lines = true;
};
Field entries_field(std::vector<Entry>& list, const Place& place);

void visit(Visitor& v, Residual& residual, const Place& place) {
  v.field({"body", "Lists the blocks of the branch.", {}, "list the blocks of the branch"},
          entries_field(residual.body, place));
  v.field(
      {"projection", "Selects what the sum takes if the body changes the extents."},
      omitted_if_default(residual.projection, Projection::automatic,
                         choice<Projection>(residual.projection, {{"auto", Projection::automatic},
                                                                  {"none", Projection::none}})));
  v.field({"drop_path", "Sets the probability that training drops the branch of a sample."},
          omitted_if_default(residual.drop_path, 0.0, real(residual.drop_path, half_open(0, 1))));
}

void visit_entry(Visitor& v, Entry& entry, const Place& place) {
  v.field({"kind", "Selects the kind of block.", {}, "name one, as in kind = \"conv\""},
          choice_of(
              kind_words(), [&entry] { return entry.kind.index(); },
              [&entry](std::size_t chosen) { entry.kind = kind_at(chosen); }));
  v.field({"repeat", "Sets how many times the block stands here."},
          omitted_if_default<std::int64_t>(entry.repeat, 1,
                                           integer(entry.repeat, between(2, max_blocks))));
  std::visit(
      [&]<class T>(T& values) {
        if constexpr (std::is_same_v<T, Residual>)
          visit(v, values, place);
        else
          visit(v, values);
      },
      entry.kind);
}

/// Returns the name of an entry in messages.
std::string in_words(const Place& place, std::int64_t number, std::int64_t line) {
  return line > 0 ? fmt::format("{}.{} (line {})", place.list, number, line)
                  : fmt::format("{}.{}", place.list, number);
}

/// Returns why an entry is wrong where it stands, or "".
std::string wrong_place(const Entry& entry, const Entry* before, bool ends_body) {
  if (const auto* norm = entry.as<Norm>();
      norm && norm->zero_init && (!ends_body || entry.repeat > 1))
    return "zero_init = true starts a branch at 0, so it is for the last norm of a residual; "
           "remove it";
  if (const auto* pool = entry.as<Pool>(); pool && pool->padding > pool->kernel / 2)
    return fmt::format("padding = {} is more than half of kernel = {}; use {} or less",
                       pool->padding, pool->kernel, pool->kernel / 2);
  if (const auto* conv = entry.as<Conv>()) {
    if (conv->dilation > 1 && conv->kernel == 1)
      return fmt::format("dilation = {} has no effect with kernel = 1; remove it", conv->dilation);
    if (conv->padding_mode == PaddingMode::periodic && conv->borders().sum() == 0)
      return fmt::format("padding_mode = \"periodic\" has no effect with {}; remove it",
                         conv->padding ? "padding = 0" : "kernel = 1");
  }
  const auto* activation = entry.as<Activation>();
  const auto* earlier = before ? before->as<Activation>() : nullptr;
  if (activation && (entry.repeat > 1 || (earlier && earlier->form == activation->form)))
    return "the same activation twice in a row; remove one";
  return "";
}

Field entries_field(std::vector<Entry>& list, const Place& place) {
  const auto read = [&list, place](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type("a list of tables, as in [{ kind = \"flatten\" }]");
    if (array->empty()) return "must not be empty";
    if (place.depth > max_depth)
      return fmt::format("bodies within bodies are {} deep; at most {}", place.depth, max_depth);
    const bool has_lines = place.has_lines && given.raw() == nullptr;
    std::vector<Entry> found;
    std::int64_t number = 0, count = 0;
    for (const Value& element : *array) {
      Entry entry{.kind = Flatten{}, .line = has_lines ? element.line() : 0};
      const std::string name = in_words(place, number, entry.line);
      const auto table = element.table();
      if (!table) return fmt::format("{} {}", name, element.wrong_type("a table { kind = .. }"));
      const Place inner{fmt::format("{}.{}.body", place.list, number), place.depth + 1, has_lines};
      std::string wrong = read_table(*table, [&](Visitor& v) { visit_entry(v, entry, inner); });
      // The message about a block of a body names that block.
      const bool is_inner = wrong.starts_with("body: " + inner.list);
      if (is_inner) wrong.erase(0, std::string_view("body: ").size());
      const bool ends_body = place.depth > 0 && &element == &array->back();
      if (wrong.empty())
        wrong = wrong_place(entry, found.empty() ? nullptr : &found.back(), ends_body);
      if (!wrong.empty()) return is_inner ? wrong : fmt::format("{}: {}", name, wrong);
      number += entry.repeat;
      found.push_back(std::move(entry));
      count = block_count(found);
      if (count > max_blocks)
        return fmt::format("{} blocks with their repetitions up to {} are too many; at most {}",
                           count, name, max_blocks);
    }
    list = std::move(found);
    return "";
  };
  const auto write = [&list, place] {
    std::vector<std::string> tables;
    for (Entry& entry : list)
      tables.push_back(write_table([&](Visitor& v) { visit_entry(v, entry, place); }));
    return tables.empty() ? std::string() : fmt::format("[{}]", fmt::join(tables, ", "));
  };
  return {read, write, "list of tables",
          fmt::format("each {{ kind = .., .. }}; kinds are {}", fmt::join(kind_words(), ", "))};
}

}  // namespace

std::int64_t block_count(const std::vector<Entry>& list) {
  std::int64_t count = 0;
  for (const Entry& entry : list) {
    const auto* residual = entry.as<Residual>();
    count += entry.repeat * (1 + (residual ? block_count(residual->body) : 0));
  }
  return count;
}

Field block_list(std::vector<Entry>& list) {
  Field field = entries_field(list, {.list = "blocks"});
  field.read = [&list, read = std::move(field.read), write = field.write](const Value& given) {
    std::string wrong = read(given);
    if (!wrong.empty()) return wrong;
    const std::size_t bytes = write().size();
    if (bytes > max_bytes)
      return fmt::format(
          "the list of {} bytes is too long; at most {}, use repeat for equal blocks", bytes,
          max_bytes);
    return wrong;
  };
  return field;
}

std::vector<Entry> comparable(const std::vector<Entry>& list) {
  std::vector<Entry> all;
  for (Entry entry : list) {
    std::visit(
        []<class T>(T& values) {
          if constexpr (std::is_same_v<T, Conv>) values.padding = values.borders();
          if constexpr (std::is_same_v<T, Pool>) values.stride = values.step();
          if constexpr (std::is_same_v<T, Residual>) values.projection = Projection::automatic;
          if constexpr (requires { values.init; }) values.init.reset();
          if constexpr (requires { values.channels; }) values.channels = 1;
          if constexpr (requires { values.width; }) values.width = 1;
          if constexpr (requires { values.rate; }) values.rate = 0;
          if constexpr (requires { values.zero_init; }) values.zero_init = false;
          if constexpr (requires { values.drop_path; }) values.drop_path = 0;
          if constexpr (requires { values.body; }) values.body = comparable(values.body);
        },
        entry.kind);
    const auto times = static_cast<std::size_t>(entry.repeat);
    entry.repeat = 1;
    all.insert(all.end(), times, entry);
  }
  return all;
}

std::string differing_block(std::vector<Entry> before, std::vector<Entry> after) {
  const auto text = [](std::vector<Entry>& list, std::size_t i) {
    return i < list.size() ? write_table([&](Visitor& v) { visit_entry(v, list[i], {}); })
                           : std::string();
  };
  std::size_t i = 0;
  while (i < before.size() && text(before, i) == text(after, i)) ++i;
  return fmt::format("blocks.{}", i);
}

std::string Entry::in_words() const {
  if (const auto* activation = as<Activation>()) return word_of(activation_words, activation->form);
  if (const auto* pool = as<Pool>()) return word_of(pool_words, pool->form) + " pool";
  if (const auto* norm = as<Norm>()) return word_of(norm_words, norm->form) + " norm";
  return word();
}

std::string Placed::in_words() const {
  return entry->line > 0 ? fmt::format("{} (line {}, {})", name, entry->line, entry->word())
                         : fmt::format("{} ({})", name, entry->word());
}

std::vector<Placed> placed(const std::vector<Entry>& list, const std::string& prefix) {
  std::vector<Placed> all;
  for (const Entry& entry : list)
    for (std::int64_t i = 0; i < entry.repeat; ++i)
      all.push_back({&entry, fmt::format("{}.{}", prefix, all.size())});
  return all;
}

}  // namespace trireme::model::chain
