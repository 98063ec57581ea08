// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/images/image.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {

/// CatalogEntry::offset of an image that is the file `name` in the folder `file`.
inline constexpr std::int64_t whole_file = -1;

/// One image of a source: where its bytes are, and its class.
struct CatalogEntry {
  std::string name;         ///< for messages: a path in a folder or archive, or a number
  std::string class_name;   ///< empty: `label` is the class, or it is not known yet
  std::int32_t label = -1;  ///< -1: not known yet
  std::uint32_t file = 0;   ///< index in ImageCatalog::files
  std::int64_t offset = 0;  ///< of the first byte; whole_file: the image is a file of its own
  std::int64_t bytes = 0;
  std::string problem;        ///< why this image cannot be used; empty: it is tried
  std::string class_problem;  ///< why its class is not known, unless a file of labels says it
};

/// How the bytes of an image are stored in a source.
enum class ImageCoding : std::uint8_t {
  interleaved,  ///< uint8 [height, width, channels]
  planar,       ///< uint8 [channels, height, width]
  file          ///< a JPEG or PNG file
};

/// All images of a source, in the order of their names (bytewise) or as they are stored. Every
/// source format makes one; the rest of `shard` treats them alike
/// (docs/guides/add_a_dataset_format.md).
struct ImageCatalog {
  ImageCoding coding = ImageCoding::file;
  std::int64_t height = 0, width = 0, channels = 0;  ///< unless files, which say it themselves
  std::vector<std::string> files;
  /// The files that are compressed. Offsets count in the decompressed content, so these must be
  /// decompressed before images are read.
  std::vector<std::uint32_t> compressed;
  /// Where the content of `files` is, once compressed ones are decompressed; empty: in `files`.
  std::vector<std::string> content;
  std::vector<std::string> classes;  ///< may be empty
  std::vector<CatalogEntry> entries;
  std::string class_source;   ///< where the classes come from, for the summary
  std::int64_t ignored = 0;   ///< files that are no images
  std::int64_t left_out = 0;  ///< images that --image does not take
  // The source's own classes, which a file of labels replaces, have these messages. Only the rank
  // that makes the catalog has them.
  std::string class_conflict;             ///< why they contradict each other; empty: they do not
  std::string class_note, class_warning;  ///< lines for the user; may be empty
  std::string source_warning;             ///< the same, whatever the classes are
  std::uint64_t identity = 0;             ///< hash of sizes and times of change of all files
};

// The source formats. `sources` are the paths of the command line; errors name them.

/// Catalogs two idx files (MNIST), IMAGES and LABELS, plain or compressed with gzip. Reads the
/// labels, and compressed images to their end. Throws InputError.
ImageCatalog catalog_idx(const std::vector<std::string>& sources);

/// Catalogs two files of NumPy (.npy): IMAGES of uint8 [samples, height, width] or [samples,
/// height, width, channels], or channels before height if the extents look so, and LABELS of
/// integers [samples]. Reads the labels. Throws InputError.
ImageCatalog catalog_npy(const std::vector<std::string>& sources);

/// Catalogs files of CIFAR's binary version. A record is one label (CIFAR-10) or a coarse and a
/// fine label (CIFAR-100), of which the fine one is taken, then 3 x 32 x 32 pixels. Throws
/// InputError with file and record.
ImageCatalog catalog_cifar(const std::vector<std::string>& sources);

/// Catalogs the JPEG and PNG files (by extension) in one folder. Those in a folder of their own
/// have its name as class; folders below it belong to the same class. `image`: the word of --image;
/// empty: all images are taken. Throws InputError.
ImageCatalog catalog_folder(const std::vector<std::string>& sources, const std::string& image = "");

/// Catalogs the JPEG and PNG files in tar archives, plain or compressed. Reads headers and short
/// texts only; an archive in an archive is entered. Throws InputError if an archive is damaged.
///
/// The class of an image is, for all of them alike:
/// 1. the text of the file of its sample with the extension .cls (a number or name), .txt (a name)
///    or .json (its member "label" or "cls", a number or name), as in WebDataset. Its name is the
///    longest one that the image's name begins with, up to a dot, else both are equal up to the
///    first dot;
/// 2. without such files: the name of the folder in the archive;
/// 3. without folders and with more than one archive: the name of the archive.
///
/// `image`: the word of --image, which chooses one image of each sample; empty: all are taken.
ImageCatalog catalog_tar(const std::vector<std::string>& sources, const std::string& image = "");

/// Decompresses a file that a catalog lists as compressed into the new file `out`, and compares the
/// checksums of the format. Throws InputError if it is damaged, Failure if the disk fails.
void decompress(const std::string& file, const std::string& out);

/// The content of a file of labels; empty: there is none.
///
/// A line is NAME LABEL. Between them is a tab; in a line without a tab a comma; in one without a
/// comma a blank. Both may be in quotes, as in RFC 4180, and then hold each of these signs. The
/// rest of the line is ignored with a warning, and without one numbers behind a blank after LABEL
/// in a line with a comma. A first line that names no image is ignored. NAME is a path, a file
/// name, or a file name without extension. LABEL is the name of a class, else a number.
struct LabelFile {
  std::string path, text;
};

/// Sets the labels of all entries. `classes`: the names in the order of their labels; empty: those
/// of the source, sorted bytewise. Only the entries [begin, end) must have a label.
///
/// Throws InputError for a line of `labels` that cannot be used, an image without a label, a class
/// that is not among `classes`, and a number that could be the place or the name of another class
/// among them.
void assign_labels(ImageCatalog& catalog, const std::vector<std::string>& classes,
                   const LabelFile& labels, std::int64_t begin, std::int64_t end);

/// Returns the place of an image for messages: "photos/cat/1.jpg" or "photos.tar: cat/1.jpg".
std::string place_of(const ImageCatalog& catalog, const CatalogEntry& entry);

/// Converts a catalog to bytes and back, to broadcast it.
std::string to_bytes(const ImageCatalog& catalog);
ImageCatalog image_catalog_from_bytes(const std::string& bytes);

/// Reads images of a catalog. One thread at a time.
class CatalogReader {
 public:
  /// `catalog` outlives this.
  explicit CatalogReader(const ImageCatalog& catalog) : catalog_(catalog) {}
  /// Returns the pixels of an image. Throws InputError without the name of the entry if it cannot
  /// be used, Failure if the disk fails or the file has changed since it was cataloged.
  Image read(const CatalogEntry& entry);
  /// Returns the JPEG or PNG file of an image, for a catalog of files, after decoding it to see
  /// that it can be used. Valid until the next call. Throws as read() does.
  std::span<const std::byte> read_file(const CatalogEntry& entry);

 private:
  /// Reads the stored bytes of an image.
  void load(const CatalogEntry& entry);
  const ImageCatalog& catalog_;
  io::File file_;
  std::vector<std::byte> stored_;
};

}  // namespace trireme::data
