// SPDX-License-Identifier: Apache-2.0
//
// Checks the report of a child process about an HDF5 file, and looks objects up in it.
//
// Hdf5Index parses the report. What no file of this program contains refuses the whole file. Every
// dataset is compared with the size of the file (stored_dataset()); a fault is kept and thrown when
// the dataset is used. Readers of shards, checkpoints and datasets call the lookups.
#include "trireme/io/hdf5/hdf5_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "hdf5_report.hpp"
#include "stored_dataset.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::io {

struct Hdf5Index::Object {
  using Kind = detail::ReportedObject::Kind;

  Kind kind = Kind::other;
  std::string problem;  ///< why the object cannot be used, without its name
  std::string target;   ///< soft link
  std::map<std::string, detail::ReportedAttribute> attributes;
  std::string attributes_problem;
  StoredDataset dataset;
  std::string dataset_problem;  ///< with its name
  std::optional<std::vector<std::string>> strings;
  std::string strings_problem;
};

namespace {

constexpr int max_links = 16;  // followed for one path, as HDF5 does
constexpr std::size_t max_problem_bytes = 500;

/// Splits an object path at slashes; drops empty parts and ".".
std::vector<std::string> path_components(const std::string& object) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : object + "/") {
    if (c != '/') {
      part += c;
    } else if (!part.empty()) {
      if (part != ".") parts.push_back(part);
      part.clear();
    }
  }
  return parts;
}

std::string join(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "/" + name;
}

}  // namespace

namespace {

/// Returns how an object leads out of its file; "" if it does not.
std::string place_outside(const detail::ReportedObject& reported) {
  using Layout = detail::ReportedDataset::Layout;
  if (reported.kind == detail::ReportedObject::Kind::link_to_other_file && reported.problem.empty())
    return "is a link into another file, which is not followed; copy the data into this file";
  if (!reported.dataset) return "";
  if (reported.dataset->layout == Layout::in_other_files)
    return "is a virtual dataset (its data are in other files), which is not supported; copy it "
           "into a plain dataset";
  if (reported.dataset->layout == Layout::external)
    return "its data are in another file (external storage), which is not supported; copy it into "
           "a plain dataset";
  return "";
}

}  // namespace

void Hdf5Index::refuse_places_outside() const {
  if (!outside_.empty()) throw InputError(outside_);
}

Hdf5Index::Hdf5Index(std::string path, std::int64_t file_bytes, std::string report)
    : path_(std::move(path)), file_bytes_(file_bytes), report_(std::move(report)) {
  ByteReader reader(report_);
  const auto next = [&] {
    try {
      return detail::object_from_bytes(reader.get_view());
    } catch (const InputError& error) {
      throw InputError(
          fmt::format("{}: the report about this file is wrong ({}): it is damaged or malicious",
                      path_, error.what()));
    }
  };
  while (!reader.at_end()) add(next());
  validate(objects_.contains(""), "{}: has no root group: the file is damaged", path_);
}

Hdf5Index::~Hdf5Index() = default;
Hdf5Index::Hdf5Index(Hdf5Index&&) noexcept = default;
Hdf5Index& Hdf5Index::operator=(Hdf5Index&&) noexcept = default;

void Hdf5Index::add(detail::ReportedObject reported) {
  const std::string location = location_of(reported.path);
  auto object = std::make_unique<Object>();
  object->kind = reported.kind;
  object->problem = reported.problem;
  const std::string outside = place_outside(reported);
  if (!outside.empty()) {
    object->problem = outside;
    if (outside_.empty()) outside_ = fmt::format("{}: {}", location, outside);
  }
  object->target = reported.target;
  object->attributes_problem = reported.attributes_problem;
  for (detail::ReportedAttribute& attribute : reported.attributes)
    object->attributes.emplace(attribute.name, std::move(attribute));
  if (reported.dataset) {
    detail::ReportedDataset& dataset = *reported.dataset;
    object->strings = std::move(dataset.strings);
    object->strings_problem = dataset.strings_problem;
    try {
      object->dataset = stored_dataset(dataset, location, file_bytes_);
    } catch (const InputError& error) {
      object->dataset_problem = error.what();
    }
  } else if (reported.kind == Object::Kind::dataset && object->problem.empty()) {
    object->problem = "cannot be opened";
  }
  objects_[reported.path] = std::move(object);
}

std::string Hdf5Index::location_of(const std::string& object) const {
  return path_ + (object.starts_with('/') ? ": " : ": /") + printable(object);
}

std::string Hdf5Index::location_of(const std::string& object, const std::string& attribute) const {
  return fmt::format("{}: attribute {} of {}", path_, printable(attribute), printable(object));
}

/// Returns the path of an object without soft links; it may be missing. Throws InputError for links
/// that form a circle, and beyond 16 links.
std::string Hdf5Index::resolve(const std::string& object) const {
  // The parts that remain, the next one at the back.
  std::vector<std::string> rest = path_components(object);
  std::reverse(rest.begin(), rest.end());
  std::string found;
  for (int links = 0; !rest.empty();) {
    const std::string parent = found;
    found = join(parent, rest.back());
    rest.pop_back();
    const auto link = objects_.find(found);
    if (link == objects_.end() || link->second->kind != Object::Kind::soft_link) continue;
    validate(++links <= max_links, "{}: its links form a circle, or are more than {}",
             location_of(object), max_links);
    const std::vector<std::string> target = path_components(link->second->target);
    rest.insert(rest.end(), target.rbegin(), target.rend());
    found = link->second->target.starts_with('/') ? "" : parent;
  }
  return found;
}

const Hdf5Index::Object* Hdf5Index::find(const std::string& object) const {
  const std::string path = resolve(object);
  const auto found = objects_.find(path);
  if (found != objects_.end()) return found->second.get();
  // A group above may be damaged, so that its members are unknown.
  for (std::string group = path; !group.empty();) {
    const std::size_t slash = group.find_last_of('/');
    group.resize(slash == std::string::npos ? 0 : slash);
    const auto parent = objects_.find(group);
    if (parent != objects_.end())
      validate(parent->second->problem.empty(), "{}: {}", location_of(group),
               printable(parent->second->problem, max_problem_bytes));
  }
  return nullptr;
}

const Hdf5Index::Object& Hdf5Index::get(const std::string& object) const {
  const Object* found = find(object);
  validate(found != nullptr, "{} is missing", location_of(object));
  return *found;
}

bool Hdf5Index::has(const std::string& object) const { return find(object) != nullptr; }

std::vector<std::string> Hdf5Index::list_datasets(const std::string& group) const {
  std::vector<std::string> datasets;
  // Groups that are reached through soft links are followed to a limited depth.
  const std::size_t max_components = path_components(group).size() + detail::max_depth - 1;
  std::vector<std::string> pending{fmt::format("{}", fmt::join(path_components(group), "/"))};
  // Soft links can lead to the same objects by many long paths.
  std::size_t seen = 0, bytes = 0;
  while (!pending.empty()) {
    const std::string current = pending.back();
    pending.pop_back();
    const std::string real = resolve(current);
    const auto owner = objects_.find(real);
    validate(owner != objects_.end() && owner->second->kind == Object::Kind::group,
             "{}: no such group", location_of(current));
    validate(owner->second->problem.empty(), "{}: {}", location_of(current),
             printable(owner->second->problem, max_problem_bytes));
    validate(path_components(current).size() <= max_components,
             "{}: groups are nested deeper than {} levels at {}", path_, detail::max_depth - 1,
             printable(current));
    const std::string prefix = real.empty() ? "" : real + "/";
    for (auto child = objects_.lower_bound(prefix);
         child != objects_.end() && child->first.starts_with(prefix); ++child) {
      bytes += current.size() + child->first.size();
      validate(++seen <= detail::max_objects && bytes <= detail::max_report_bytes,
               "{}: more than {} objects, or their paths exceed {} MiB", path_, detail::max_objects,
               detail::max_report_bytes >> 20);
      const std::string name = child->first.substr(prefix.size());
      if (name.empty() || name.find('/') != std::string::npos) continue;
      const Object* object = nullptr;
      try {
        object = find(child->first);
      } catch (const InputError&) {
        // Links in a circle. dataset() says so.
      }
      const bool is_group = object != nullptr && object->kind == Object::Kind::group;
      (is_group ? pending : datasets).push_back(join(current, name));
    }
  }
  std::sort(datasets.begin(), datasets.end());
  return datasets;
}

const StoredDataset& Hdf5Index::dataset(const std::string& object) const {
  const Object& found = get(object);
  const std::string location = location_of(object);
  validate(found.problem.empty(), "{}: {}", location, printable(found.problem, max_problem_bytes));
  validate(found.kind == Object::Kind::dataset, "{}: is not a dataset", location);
  if (!found.dataset_problem.empty()) throw InputError(found.dataset_problem);
  return found.dataset;
}

const std::vector<std::string>& Hdf5Index::strings(const std::string& object) const {
  const StoredDataset& stored = dataset(object);
  const Object& found = get(object);
  validate(stored.kind == StoredDataset::Kind::text && stored.shape.size() <= 1,
           "{}: must be a list of strings", location_of(object));
  validate(found.strings.has_value(), "{}: {}", location_of(object),
           printable(found.strings_problem, max_problem_bytes));
  return *found.strings;
}

const detail::ReportedAttribute* Hdf5Index::find_attribute(const std::string& object,
                                                           const std::string& name) const {
  const Object& owner = get(object);
  const auto found = owner.attributes.find(name);
  if (found != owner.attributes.end()) return &found->second;
  const std::string& problem = owner.problem.empty() ? owner.attributes_problem : owner.problem;
  validate(problem.empty(), "{}: {}", location_of(object, name),
           printable(problem, max_problem_bytes));
  return nullptr;
}

bool Hdf5Index::has_attribute(const std::string& object, const std::string& name) const {
  return find_attribute(object, name) != nullptr;
}

std::optional<Hdf5Value> Hdf5Index::attribute(const std::string& object,
                                              const std::string& name) const {
  const detail::ReportedAttribute* found = find_attribute(object, name);
  if (found == nullptr) return std::nullopt;
  validate(found->problem.empty() && found->value.has_value(), "{}: {}", location_of(object, name),
           printable(found->problem, max_problem_bytes));
  return found->value;
}

std::map<std::string, Hdf5Value> Hdf5Index::attributes(const std::string& object) const {
  const Object& owner = get(object);
  validate(owner.attributes_problem.empty(), "{}: {}", location_of(object),
           printable(owner.attributes_problem, max_problem_bytes));
  std::map<std::string, Hdf5Value> values;
  for (const auto& [name, unused] : owner.attributes)
    values.emplace(name, *attribute(object, name));
  return values;
}

std::int64_t Hdf5Index::attribute_int(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (a whole number)", location);
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr, "{}: must be a whole number below 2^63", location);
  return *signed_value;
}

std::uint64_t Hdf5Index::attribute_uint(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (an unsigned whole number)", location);
  if (const auto* unsigned_value = std::get_if<std::uint64_t>(&*value)) return *unsigned_value;
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr && *signed_value >= 0, "{}: must be an unsigned whole number",
           location);
  return static_cast<std::uint64_t>(*signed_value);
}

double Hdf5Index::attribute_double(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (a number)", location);
  if (const auto* real = std::get_if<double>(&*value)) return *real;
  if (const auto* large = std::get_if<std::uint64_t>(&*value)) return static_cast<double>(*large);
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr, "{}: must be a number", location);
  return static_cast<double>(*signed_value);
}

std::string Hdf5Index::attribute_string(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (a string)", location);
  const auto* text = std::get_if<std::string>(&*value);
  validate(text != nullptr, "{}: must be a string", location);
  return *text;
}

const std::vector<std::string>& Hdf5Index::attribute_strings(const std::string& object,
                                                             const std::string& name) const {
  const detail::ReportedAttribute* found = find_attribute(object, name);
  const std::string location = location_of(object, name);
  validate(found != nullptr, "{}: is missing (strings)", location);
  validate(found->is_text, "{}: must be strings", location);
  // An attribute of several strings has a problem too: it is not a single value.
  validate(!found->strings.empty() || found->problem.empty(), "{}: {}", location,
           printable(found->problem, max_problem_bytes));
  return found->strings;
}

}  // namespace trireme::io
