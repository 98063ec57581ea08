// SPDX-License-Identifier: Apache-2.0
//
// Reads a file of tables from TOML and collects its mistakes.
//
// Order of events:
// 1. Constructor: reject keys that are too deep, parse the TOML, apply each --unset and --set.
// 2. A visit of all tables calls field() for every key: it reads the value or adds a mistake. A key
//    without effect is a mistake too, unless such keys are dropped.
// 3. The caller adds mistakes about pairs of keys.
// 4. finish(): add unknown keys, sort all mistakes by location, throw them as one InputError.
#include "trireme/keys/reader.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>

#include "limits.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::keys {

namespace {

/// Returns "table.key"; keys outside any table have no prefix.
std::string join_key_path(const std::string& table, const std::string& key) {
  return table.empty() ? key : table + "." + key;
}

/// Splits "data.augment.flip" into "data.augment" and "flip".
std::pair<std::string, std::string> split_key_path(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// Splits a path at every dot.
std::vector<std::string> split_at_dots(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    parts.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(path.substr(begin));
  return parts;
}

/// Returns whether a value of one of two alternatives stands for no value: "none" or [].
bool is_off(const toml::node& value) {
  const toml::array* list = value.as_array();
  const auto* word = value.as_string();
  return (list != nullptr && list->empty()) || (word != nullptr && word->get() == "none");
}

/// Returns an override as messages name it. A long value must not hide the reason behind it.
std::string override_text(const Override& given) {
  constexpr std::size_t max_bytes = 80;
  const std::string key = printable(given.key, max_bytes);
  return given.value ? fmt::format("--set {}={}", key, printable(*given.value, max_bytes))
                     : fmt::format("--unset {}", key);
}

/// Returns an override without blanks around its key and in front of its value, quoted for a shell.
std::string without_blanks(const Override& given) {
  Override trimmed = given;
  std::erase_if(trimmed.key, [](unsigned char c) { return std::isspace(c) != 0; });
  if (!trimmed.value) return override_text(trimmed);
  std::string& value = *trimmed.value;
  value.erase(0, value.find_first_not_of(" \t\r\n"));
  if (value.find_first_of(" \t\r\n\"") == std::string::npos) return override_text(trimmed);
  constexpr std::size_t max_bytes = 80;
  return fmt::format("--set '{}={}'", printable(trimmed.key, max_bytes),
                     printable(value, max_bytes));
}

/// Returns the paths of all tables and keys in `table`; `prefix` is that of the table itself.
std::vector<std::string> key_paths(const toml::table& table, const std::string& prefix = "") {
  std::vector<std::string> paths;
  for (const auto& [key, node] : table) {
    paths.push_back(join_key_path(prefix, std::string(key.str())));
    const toml::table* const inner = node.as_table();
    if (inner == nullptr) continue;
    const std::vector<std::string> more = key_paths(*inner, paths.back());
    paths.insert(paths.end(), more.begin(), more.end());
  }
  return paths;
}

/// Parses the value of a --set. Returns a table with the one key "value", which holds it as TOML.
/// A text that is not valid TOML becomes a string. Throws InputError for a table or list that is
/// not valid.
toml::table parse_value(const std::string& value) {
  const std::string text = "value = " + value;
  try {
    if (line_of_deep_key(text) == 0) {
      toml::table table = toml::parse(text);
      if (table.size() == 1) return table;
    }
  } catch (const toml::parse_error& error) {
    if (value.starts_with('{') || value.starts_with('['))
      throw InputError(fmt::format("not valid TOML: {}", error.description()));
    // An unquoted word or duration: the shell removes the quotes of --set run.stop="3 epochs".
  }
  toml::table table;
  table.insert("value", value);
  return table;
}

}  // namespace

struct Reader::Document {
  toml::table root;

  /// Returns the node at a dotted path, or null.
  const toml::node* find(const std::string& path) const {
    const toml::node* node = &root;
    if (path.empty()) return node;
    for (const std::string& part : split_at_dots(path)) {
      const toml::table* table = node->as_table();
      node = table ? table->get(part) : nullptr;
      if (!node) return nullptr;
    }
    return node;
  }
};

Reader::Reader(const std::string& text, std::string file, const ReaderOptions& options)
    : file_(std::move(file)),
      without_effect_(options.without_effect),
      alternatives_(options.alternatives),
      document_(std::make_unique<Document>()) {
  if (const std::size_t line = line_of_deep_key(text); line > 0)
    throw InputError(
        fmt::format("{}:{}: a key of more than {} parts; a deck's keys have three at most, as in "
                    "data.augment.flip",
                    file_, line, max_key_parts));
  try {
    document_->root = toml::parse(text, file_);
  } catch (const toml::parse_error& error) {
    const auto place = error.source().begin;
    throw InputError(fmt::format("{}:{}:{}: not valid TOML: {}", file_, place.line, place.column,
                                 error.description()));
  }
  std::set<std::string> removed;
  for (const Override& given : options.overrides)
    if (given.value || removed.insert(given.key).second) apply_override(given);
  has_overrides_ = !options.overrides.empty();
}

Reader::~Reader() = default;

std::string Reader::replaced_key(const std::string& key) const {
  for (const auto& [one, other] : alternatives_) {
    if (key == one) return other;
    if (key == other) return one;
  }
  return "";
}

void Reader::apply_override(const Override& given) {
  const std::vector<std::string> parts = split_at_dots(given.key);
  const auto refuse = [&](const std::string& why) {
    mistakes_.push_back({override_text(given), why});
  };
  if (!is_utf8(given.key) || !is_utf8(given.value.value_or("")))
    return refuse("is not UTF-8 text, which a deck must be");
  if (std::find(parts.begin(), parts.end(), "") != parts.end())
    return refuse("a key is written table.key, as in optimizer.momentum");
  constexpr std::size_t max_parts = 8;
  if (given.key.find_first_of(" \t\r\n") != std::string::npos)
    return refuse(fmt::format("a key has no blanks; write {}", without_blanks(given)));
  if (parts.size() > max_parts)
    return refuse(
        fmt::format("a key of {} parts; a deck's keys have three at most, as in data.augment.flip",
                    parts.size()));
  toml::table* table = &document_->root;
  if (!given.value && !is_set(given.key)) {
    const std::string guess = nearest(given.key, key_paths(*table));
    return refuse("the deck does not have this key" +
                  (guess.empty() ? "" : fmt::format(", did you mean {}?", guess)));
  }
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (!table->contains(parts[i])) table->insert(parts[i], toml::table{});
    table = table->get(parts[i])->as_table();
    if (!table) return refuse(fmt::format("{} is not a table", parts[i]));
  }
  if (!given.value) {
    table->erase(parts.back());
    return;
  }
  try {
    toml::table value = parse_value(*given.value);
    toml::node& node = *value.get("value");
    // An override replaces what the deck says in the other way. Two overrides contradict.
    const std::string other = replaced_key(given.key);
    if (!other.empty() && !is_off(node) && !overrides_.contains(other))
      table->erase(split_key_path(other).second);
    table->insert_or_assign(parts.back(), std::move(node));
  } catch (const InputError& error) {
    return refuse(error.what());
  }
  overrides_[given.key] = *given.value;
}

void Reader::table(const char* path) {
  current_table_ = path;
  tables_[current_table_];
  const auto [parent, name] = split_key_path(current_table_);
  tables_[parent].tables.push_back(name);
  const toml::node* node = document_->find(current_table_);
  if (node && !node->is_table())
    add_mistake(current_table_,
                Value(node).wrong_type(fmt::format("a table [{}]", current_table_)));
}

void Reader::field(const Key& key, const Field& field) {
  Table& table = tables_[current_table_];
  const std::string path = join_key_path(current_table_, key.name);
  // A condition without a decider ("") is never unknown: no key has the empty path.
  const bool is_unknown = has_mistake(key.applies_to.decided_by);
  (key.applies_to.is_met ? table.keys : table.inapplicable_keys).push_back(key.name);
  if (is_unknown) table.undecided_keys[key.name] = key.applies_to.decided_by;
  const toml::node* node = document_->find(path);
  if (!node) {
    if (key.applies_to.is_met && key.missing_advice && !is_unknown)
      add_mistake(path, fmt::format("missing; {}", key.missing_advice));
    return;
  }
  // If the condition is unknown, the value is checked nevertheless, so that the user sees all
  // mistakes in one run.
  if (!key.applies_to.is_met && !is_unknown) {
    if (without_effect_ == KeysWithoutEffect::reject)
      return add_mistake(
          path, fmt::format("belongs to {}; {}", key.applies_to.condition, removal_advice(path)));
    dropped_keys_.push_back(path);
    return;
  }
  if (!field.read || (is_unknown && key.value_depends_on_decider)) return;
  const auto raw = overrides_.find(path);
  const toml::source_position at = node->source().begin;
  const auto part = raw != overrides_.end() ? raw : override_within(path);
  key_locations_[path] = part != overrides_.end()
                             ? override_text({part->first, part->second})
                             : fmt::format("{}:{}:{}", file_, at.line, at.column);
  const std::string why = field.read(Value(node, raw == overrides_.end() ? nullptr : &raw->second));
  if (!why.empty()) add_mistake(path, why);
}

bool Reader::is_set(const std::string& path) const { return document_->find(path) != nullptr; }

bool Reader::any_wrong(std::initializer_list<const char*> paths) const {
  return std::any_of(paths.begin(), paths.end(),
                     [&](const char* path) { return has_mistake(path); });
}

KeyNotes Reader::notes() const {
  return KeyNotes([this](const char* key) { return !is_set(key); });
}

std::string Reader::removal_advice(const std::string& path) const {
  return has_overrides_ && !overrides_.contains(path)
             ? fmt::format("remove it, or give --unset {}", path)
             : "remove it";
}

/// Returns an override of a key in the table `path`.
std::map<std::string, std::string>::const_iterator Reader::override_within(
    const std::string& path) const {
  const auto found = overrides_.lower_bound(path + ".");
  return found != overrides_.end() && found->first.starts_with(path + ".") ? found
                                                                           : overrides_.end();
}

void Reader::add_mistake(const std::string& path, const std::string& message) {
  keys_with_mistake_.insert(path);
  const auto [table, key] = split_key_path(path);
  // A mistake in an override is reported with the argument of the longest matching path.
  const std::string name =
      table.empty() ? fmt::format("[{}]", path) : fmt::format("[{}] {}", table, key);
  for (std::string part = path; !part.empty(); part = split_key_path(part).first) {
    const auto found = overrides_.find(part);
    if (found == overrides_.end() || !is_set(path)) continue;
    // The argument already names the key, unless it set a whole table.
    mistakes_.push_back({override_text({part, found->second}),
                         part == path ? message : fmt::format("{}: {}", name, message)});
    return;
  }
  const toml::node* node = document_->find(path);
  // A value that an override changed in part, or a table that exists only because of an override
  // and has no line in the file.
  const auto within = override_within(path);
  if (node && within != overrides_.end() &&
      (!tables_.contains(path) || node->source().begin.line == 0))
    return mistakes_.push_back(
        {override_text({within->first, within->second}), fmt::format("{}: {}", name, message)});
  if (!node) node = document_->find(table);
  const toml::source_position place =
      node && node != &document_->root ? node->source().begin : toml::source_position{};
  mistakes_.push_back({file_, fmt::format("{}: {}", name, message), place.line, place.column});
}

std::string Reader::unknown_key_message(const std::string& table, const std::string& key) const {
  const Table& known = tables_.at(table);
  if (table.empty()) {
    std::vector<std::string> homes;
    for (const auto& [name, other] : tables_)
      if (!name.empty() && std::find(other.keys.begin(), other.keys.end(), key) != other.keys.end())
        homes.push_back(fmt::format("[{}]", name));
    if (!homes.empty())
      return fmt::format("unknown table or key; {} is a key of {}", key,
                         fmt::join(homes, " and of "));
    const std::string guess = nearest(key, known.tables);
    if (!guess.empty()) return fmt::format("unknown table, did you mean [{}]?", guess);
    return fmt::format("unknown table; tables are {}", fmt::join(known.tables, ", "));
  }
  std::vector<std::string> names = known.keys;
  names.insert(names.end(), known.tables.begin(), known.tables.end());
  std::string guess = nearest(key, names);
  for (const auto& [name, other] : tables_) {
    if (name == table || std::find(other.keys.begin(), other.keys.end(), key) == other.keys.end())
      continue;
    return fmt::format("unknown key; {} is a key of [{}]", key, name);
  }
  if (guess.empty()) guess = nearest(key, known.inapplicable_keys);
  if (!guess.empty()) return fmt::format("unknown key, did you mean \"{}\"?", guess);
  // A key that depends on one with a mistake may be a key here or not.
  names.erase(std::remove_if(names.begin(), names.end(),
                             [&](const std::string& name) {
                               return known.undecided_keys.find(name) != known.undecided_keys.end();
                             }),
              names.end());
  std::set<std::string> deciders;
  for (const auto& [name, decider] : known.undecided_keys) deciders.insert(decider);
  const std::string others =
      deciders.empty()
          ? ""
          : fmt::format(", and those that follow from {}, which must be corrected first",
                        fmt::join(deciders, ", "));
  return fmt::format("unknown key; keys here are {}{}", fmt::join(names, ", "), others);
}

void Reader::add_unknown_keys() {
  for (const auto& [path, table] : tables_) {
    const toml::node* node = document_->find(path);
    if (!node || !node->is_table()) continue;
    for (const auto& [key, value] : *node->as_table()) {
      const std::string name(key.str());
      const auto knows = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      if (knows(table.keys) || knows(table.inapplicable_keys) || knows(table.tables)) continue;
      add_mistake(join_key_path(path, name), unknown_key_message(path, name));
      // An unknown key is reported at the location of the key, not of its value.
      if (mistakes_.back().line > 0) {
        mistakes_.back().line = key.source().begin.line;
        mistakes_.back().column = key.source().begin.column;
      }
    }
  }
}

void Reader::finish() {
  add_unknown_keys();
  if (mistakes_.empty()) return;
  // Mistakes of the file by line and column, then those without a location, then overrides.
  const auto order = [this](const Mistake& m) {
    return std::make_tuple(m.source != file_, m.line == 0, m.line, m.column);
  };
  std::stable_sort(mistakes_.begin(), mistakes_.end(),
                   [&](const Mistake& a, const Mistake& b) { return order(a) < order(b); });
  std::vector<std::string> lines;
  for (const Mistake& m : mistakes_)
    lines.push_back((m.line > 0 ? fmt::format("{}:{}:{}: ", m.source, m.line, m.column)
                                : fmt::format("{}: ", m.source)) +
                    shorten_message(m.text));
  // A value may hold a line feed; a mistake has one line.
  for (std::string& line : lines) line = printable(line, line.size());
  throw InputError(fmt::format("{}", fmt::join(lines, "\n")));
}

}  // namespace trireme::keys
