// SPDX-License-Identifier: Apache-2.0
//
// Catalogs a folder of JPEG and PNG files.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catalog_names.hpp"
#include "data/images/image_choice.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

/// Lists folders below `root` into a catalog.
class Listing {
 public:
  Listing(const std::string& root, ImageCatalog& catalog) : root_(root), catalog_(catalog) {}

  /// Adds the images of `folder` (relative to the root, "" or ending with '/') and of the folders
  /// in it. Folders directly below the root are the classes.
  void add(const std::string& folder, const std::string& class_name) {
    std::error_code error;
    for (fs::directory_iterator entry(root_ + "/" + folder, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with('.')) continue;
      std::error_code unreadable;
      if (entry->is_directory(unreadable)) {
        // A link to a folder below a class may lead back to it.
        if (!folder.empty() && entry->is_symlink(unreadable)) {
          ++catalog_.ignored;
          continue;
        }
        const std::size_t before = catalog_.entries.size();
        add(folder + name + "/", class_name.empty() ? name : class_name);
        if (folder.empty() && catalog_.entries.size() == before) empty_.insert(name);
      } else if (is_image_name(name)) {
        CatalogEntry& image = catalog_.entries.emplace_back();
        image.name = folder + name;
        image.class_name = class_name;
        image.offset = whole_file;
        if (!entry->is_regular_file(unreadable))
          image.problem = unreadable ? unreadable.message() : "is no regular file";
      } else {
        ++catalog_.ignored;
      }
    }
    validate_path(error.value(), "{}/{}: cannot be listed: {}", root_, folder, error.message());
  }
  /// Returns the names of the classes without an image.
  const std::set<std::string>& empty() const { return empty_; }

 private:
  const std::string& root_;
  ImageCatalog& catalog_;
  std::set<std::string> empty_;
};

/// Removes the images that --image does not take, and notes what the user should know of the rest.
void choose_images(const ImageChoice& choice, const std::string& folder, ImageCatalog& catalog) {
  ImageNames names;
  for (const CatalogEntry& entry : catalog.entries) names.add(entry.name);
  LeftOut left_out;
  CountedFiles second;
  FolderLevels levels("outermost");
  std::vector<CatalogEntry> taken;
  std::set<std::string> classes, classes_left_out;
  for (const CatalogEntry& entry : catalog.entries) {
    const bool is_taken = names.is_taken(entry.name, choice);
    (is_taken ? classes : classes_left_out).insert(entry.class_name);
    if (!is_taken) {
      left_out.add(entry.name);
      continue;
    }
    if (const auto owner = names.owner_of(entry.name); !owner.empty())
      second.add(entry.name, owner);
    levels.add(entry);
    taken.push_back(entry);
  }
  left_out.check(choice, folder, taken.size());
  check_classes_remain(choice, folder, classes_left_out, classes);
  catalog.left_out = left_out.count();
  catalog.class_warning = second_images_warning(second);
  catalog.class_note = levels.note();
  catalog.entries = std::move(taken);
}

}  // namespace

ImageCatalog catalog_folder(const std::vector<std::string>& sources, const std::string& image) {
  validate(sources.size() == 1, "shard folder: {} folders given, but one is needed",
           sources.size());
  const std::string& folder = sources[0];
  std::error_code error;
  validate(fs::is_directory(folder, error), "{}: there is no such folder", folder);
  ImageCatalog catalog;
  catalog.files = {folder};
  catalog.class_source = "folders";
  Listing listing(folder, catalog);
  listing.add("", "");
  validate(!catalog.entries.empty(), "{}: contains no JPEG or PNG file (.jpg, .jpeg, .png)",
           folder);
  validate(listing.empty().empty(),
           "{}/{}: contains no JPEG or PNG file (.jpg, .jpeg, .png), so the class has no image; "
           "remove the folder",
           folder, listing.empty().empty() ? "" : *listing.empty().begin());
  choose_images(ImageChoice(image), folder, catalog);
  std::sort(catalog.entries.begin(), catalog.entries.end(),
            [](const CatalogEntry& a, const CatalogEntry& b) { return a.name < b.name; });
  FileIdentity identity;
  for (CatalogEntry& entry : catalog.entries)
    if (entry.problem.empty()) entry.bytes = identity.add(place_of(catalog, entry));
  catalog.identity = identity.value();
  return catalog;
}

}  // namespace trireme::data
