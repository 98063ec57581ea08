// SPDX-License-Identifier: Apache-2.0
//
// Reads a file of labels: a table with a line for each image (LabelFile).
//
// 1. Each line is cut into columns. The first one finds the image, the second one is its label.
// 2. Columns behind the label are not used. A table in which they say which class an image has is
//    refused; every other one gets a warning.
// 3. A label is a whole number or a name. Other numbers are refused: as names, 10.0 would be
//    before 2.0.
#include "label_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data/shards/shard_limits.hpp"
#include "printed_value.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

/// Finds the image that a line of a file of labels means.
class EntryNames {
 public:
  explicit EntryNames(const ImageCatalog& catalog) {
    for (std::size_t i = 0; i < catalog.entries.size(); ++i) {
      const CatalogEntry& entry = catalog.entries[i];
      const std::string_view path = entry.name, file = path.substr(path.rfind('/') + 1);
      add(0, fmt::format("{}/{}", catalog.files[entry.file], path), i);
      add(1, std::string(path), i);
      add(2, std::string(file), i);
      add(3, std::string(file.substr(0, file.rfind('.'))), i);
    }
  }
  /// Returns the index of the image; none if there is no such image. Throws InputError if several
  /// fit equally well.
  std::optional<std::size_t> find(const std::string& name, const std::string& line) const {
    for (const auto& form : forms_) {
      const auto found = form.find(name);
      if (found == form.end()) continue;
      validate(found->second != ambiguous,
               "{}: several images are called {}; write the path in the folder, or ARCHIVE/PATH",
               line, printable(name));
      return found->second;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t ambiguous = ~std::size_t{0};
  void add(std::size_t form, std::string name, std::size_t index) {
    const auto [at, is_new] = forms_[form].emplace(std::move(name), index);
    if (!is_new) at->second = ambiguous;
  }
  /// With the folder or archive, path, file name, and file name without extension.
  std::array<std::unordered_map<std::string, std::size_t>, 4> forms_;
};

/// Returns the sign between the columns of a line: a tab, else a comma, else a blank. Signs in
/// quotes do not count.
char separator_of(std::string_view line) {
  bool has_comma = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool begins = i == 0 || line[i - 1] == '\t' || line[i - 1] == ',' || line[i - 1] == ' ';
    if (line[i] == '"' && begins) {
      do {  // two quotes are one in the text
        i = line.find('"', i + 1);
      } while (i != std::string_view::npos && line.substr(++i).starts_with('"'));
      if (i == std::string_view::npos) break;
      --i;
    } else if (line[i] == '\t') {
      return '\t';
    } else {
      has_comma = has_comma || line[i] == ',';
    }
  }
  return has_comma ? ',' : ' ';
}

void remove_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
}

/// Removes the first column of a line and the sign behind it, and returns the column. In quotes it
/// may hold any sign, and two quotes stand for one (RFC 4180). Throws InputError.
std::string take_column(std::string_view& line, char separator, const std::string& where) {
  if (!line.starts_with('"')) {
    const std::string_view column = line.substr(0, line.find(separator));
    line.remove_prefix(std::min(column.size() + 1, line.size()));
    return std::string(column);
  }
  const std::string_view whole = line;
  std::string column;
  for (line.remove_prefix(1); !line.empty(); line.remove_prefix(1)) {
    if (line[0] == '"') {
      line.remove_prefix(1);
      if (!line.starts_with('"')) {
        if (separator == ',') remove_blanks(line);
        validate(line.empty() || line[0] == separator,
                 "{}: {} has text behind a closing quote; in quotes, \"\" stands for a quote",
                 where, printable(whole, 60));
        line.remove_prefix(line.empty() ? 0 : 1);
        return column;
      }
    }
    column += line[0];
  }
  throw InputError(fmt::format(
      "{}: the quote before {} is not closed in this line; in quotes, \"\" stands for a quote",
      where, printable(whole.substr(1), 60)));
}

/// Returns the label in a column. Behind it may be the four numbers of a box, and more labels with
/// their boxes, as in ImageNet's lists. Throws InputError for other words: "red fox" and "red
/// panda", or "grade 0" and "grade 4", would be one class.
std::string first_word(const std::string& column, const std::string& where) {
  constexpr int numbers_of_a_box = 4;
  std::string_view rest = column;
  const std::string label(rest.substr(0, rest.find(' ')));
  int numbers = 0;  // of the box that is being read
  bool is_list = true;
  for (rest.remove_prefix(label.size()), remove_blanks(rest); !rest.empty(); remove_blanks(rest)) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    const bool begins_a_box = word == label && numbers == numbers_of_a_box;
    numbers = begins_a_box ? 0 : numbers + 1;
    is_list = is_list && (begins_a_box || (numbers <= numbers_of_a_box && is_number(word)));
    rest.remove_prefix(word.size());
  }
  validate(is_list && (numbers == 0 || numbers == numbers_of_a_box),
           "{}: the label \"{}\" has several words; write it in quotes, or with tabs between the "
           "columns",
           where, printable(column, 60));
  return label;
}

/// A line of a file of labels.
struct LabelLine {
  std::string name, label;          ///< an empty label: there is none
  bool may_have_boxes = false;      ///< first_word() has to cut the label
  std::vector<std::string> unused;  ///< the columns behind the label
};

/// Cuts a line into columns. Throws InputError.
LabelLine parse_line(std::string_view line, const std::string& where) {
  const char separator = separator_of(line);
  LabelLine result;
  result.name = take_column(line, separator, where);
  remove_blanks(line);
  const bool is_quoted = line.starts_with('"');
  result.label = take_column(line, separator, where);
  result.may_have_boxes = !is_quoted && separator == ',';
  if (!is_quoted) result.label.resize(result.label.find_last_not_of(' ') + 1);
  for (remove_blanks(line); !line.empty(); remove_blanks(line))
    result.unused.push_back(take_column(line, separator, where));
  return result;
}

/// Looks at the columns that are not used.
class UnusedColumns {
 public:
  /// Notes the header of the table.
  void add_header(LabelLine header) { header_ = std::move(header); }
  /// Notes the line of an image.
  void add(const LabelLine& line) {
    ++lines_;
    std::vector<std::string> values = line.unused;
    while (!values.empty() && values.back().empty()) values.pop_back();
    if (values.empty()) {
      is_one_hot_ = false;
      return;
    }
    ++longer_lines_;
    values.push_back(line.label);
    const auto ones = std::count_if(values.begin(), values.end(), is_one);
    is_one_hot_ = is_one_hot_ && ones == 1 && std::all_of(values.begin(), values.end(), is_bit);
  }
  /// Throws InputError if each column is a class, and one of them holds 1 in each line.
  void check(const std::string& path) const {
    validate(lines_ == 0 || !is_one_hot_,
             "{}: its columns{} hold 1 in one column of each line and 0 in the others, so each "
             "column is a class; write lines NAME LABEL, with the name of the class as LABEL",
             path, named_columns());
  }
  /// Returns a warning of them; empty: there are none.
  std::string warning(const std::string& path) const {
    if (longer_lines_ == 0) return "";
    const std::string lines = longer_lines_ == lines_
                                  ? "its lines have"
                                  : counted(longer_lines_, "line has", "lines have");
    return fmt::format(
        "{}: {} more than two columns; the class is the second one{}, and the others are not used; "
        "to take another one, write a file of lines NAME LABEL",
        path, lines, header_ ? fmt::format(", \"{}\"", printable(header_->label, 60)) : "");
  }

 private:
  static bool is_one(const std::string& word) { return word == "1" || word == "1.0"; }
  static bool is_bit(const std::string& word) {
    return is_one(word) || word == "0" || word == "0.0";
  }
  /// Returns " MEL, NV, ..." from the header.
  std::string named_columns() const {
    if (!header_) return "";
    std::string text = " " + printable(header_->label, 60);
    for (std::size_t i = 0; i < header_->unused.size(); ++i)
      if (i < max_named)
        text += ", " + printable(header_->unused[i], 60);
      else
        return text + ", ...";
    return text;
  }

  static constexpr std::size_t max_named = 3;
  std::optional<LabelLine> header_;
  std::int64_t lines_ = 0, longer_lines_ = 0;
  bool is_one_hot_ = true;
};

/// The label of an image.
struct PlacedLabel {
  std::string word, where;  ///< where: the file and the line
};

/// Returns the labels of the images, empty where there is none. Throws InputError.
std::vector<PlacedLabel> read_lines(const ImageCatalog& catalog, const LabelFile& labels,
                                    UnusedColumns& unused) {
  const EntryNames names(catalog);
  std::vector<PlacedLabel> words(catalog.entries.size());
  std::string_view text = labels.text;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.find_first_not_of(" ,\t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", labels.path, number);
    LabelLine parsed = parse_line(line, where);
    validate(!parsed.label.empty(), "{}: \"{}\" has no label; a line is NAME LABEL", where,
             printable(line));
    const std::optional<std::size_t> entry = names.find(parsed.name, where);
    validate(entry || number == 1, "{}: no image is called {}", where, printable(parsed.name));
    if (!entry) {
      unused.add_header(std::move(parsed));
      continue;
    }
    validate(words[*entry].word.empty(), "{}: {} has a label already", where,
             printable(parsed.name));
    if (parsed.may_have_boxes) parsed.label = first_word(parsed.label, where);
    unused.add(parsed);
    words[*entry] = {std::move(parsed.label), where};
  }
  return words;
}

}  // namespace

void read_label_file(ImageCatalog& catalog, const std::vector<std::string>& classes,
                     const LabelFile& labels) {
  for (CatalogEntry& entry : catalog.entries) {
    entry.class_name.clear();
    entry.class_problem.clear();
    entry.label = -1;
  }
  // 1. The words that stand for the classes.
  UnusedColumns unused;
  const std::vector<PlacedLabel> words = read_lines(catalog, labels, unused);
  unused.check(labels.path);
  // 2. With --classes each word may be a name or a number, else all are of one kind.
  const std::unordered_set<std::string_view> known(classes.begin(), classes.end());
  const PlacedLabel *first_name = nullptr, *first_number = nullptr;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto& [word, where] = words[i];
    if (word.empty()) continue;
    CatalogEntry& entry = catalog.entries[i];
    const std::optional<std::int64_t> number = parse_integer(word);
    if (!number) {
      validate(known.contains(word) || !is_number(word),
               "{}: label \"{}\" is neither the number of a class (0, 1, ...) nor a name; list it "
               "with --classes if it is a name",
               where, printable(word, 60));
      entry.class_name = word;
      if (first_name == nullptr) first_name = &words[i];
      continue;
    }
    validate(*number >= 0 && *number < static_cast<std::int64_t>(max_classes),
             "{}: label {} is not a class; labels are 0 to {}", where, *number, max_classes - 1);
    entry.label = static_cast<std::int32_t>(*number);
    if (first_number == nullptr) first_number = &words[i];
  }
  const bool is_mixed = classes.empty() && first_name != nullptr && first_number != nullptr;
  validate(!is_mixed,
           "{}: label {} is a number, but {} has the name \"{}\"; use one of the two for all "
           "images, or list all names with --classes",
           is_mixed ? first_number->where : "", is_mixed ? first_number->word : "",
           is_mixed ? first_name->where : "", is_mixed ? printable(first_name->word, 60) : "");
  catalog.class_source = "--labels";
  catalog.class_note.clear();
  catalog.class_warning = unused.warning(labels.path);
}

}  // namespace trireme::data
