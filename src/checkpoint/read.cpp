#include <algorithm>

#include "agreement.hpp"
#include "digest.hpp"
#include "rows.hpp"
#include "seal.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::checkpoint {
namespace {

constexpr const char* tensor_groups[] = {"buffers", "ema", "model", "optimizer"};

std::int64_t count_of(const io::Hdf5File& file, const std::string& name, const std::string& object = "/") {
  if (!file.has(object) || !file.has_attribute(object, name)) return 0;
  const std::int64_t count = file.attribute_int(object, name);
  validate(count >= 0, "{}: attribute {} of {} is {}; it counts from 0", file.path(), name, object, count);
  return count;
}

/// Opens a checkpoint and checks that it is one.
io::Hdf5File open_checkpoint(const std::string& path) {
  refuse_folder(path);
  io::Hdf5File file = io::Hdf5File::open(path);
  validate(file.has_attribute("/", "format"), "{}: has no attribute format; a checkpoint has format = \"trireme-checkpoint\"", path);
  const std::string format = file.attribute_string("/", "format");
  validate(format == "trireme-checkpoint", "{}: format is \"{}\", where a checkpoint has \"trireme-checkpoint\"", path, format);
  const std::int64_t version = file.attribute_int("/", "version");
  validate(version == 1, "{}: version {} of the checkpoint format is not known here (1 is)", path, version);
  validate(file.has_attribute("/", "complete") && file.attribute_int("/", "complete") == 1,
           "{}: attribute complete is not 1: it was not written to its end", path);
  return file;
}

std::vector<std::string> tensor_paths(const io::Hdf5File& file) {
  std::vector<std::string> paths;
  for (const char* group : tensor_groups) {
    if (!file.has(group)) continue;
    const std::vector<std::string> below = file.list_datasets(group);
    paths.insert(paths.end(), below.begin(), below.end());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Shape shape_of(const io::Hdf5Dataset& dataset) {
  const std::vector<std::int64_t>& extents = dataset.description().shape;
  validate(extents.size() <= Shape::max_rank, "{}: has {} dimensions; a tensor has at most {}", dataset.place(), extents.size(), Shape::max_rank);
  Shape shape;
  for (const std::int64_t extent : extents) shape.push_back(extent);
  return shape;
}

/// A digest is over float32 as it stands in the file: other types are converted, and their digest says nothing here.
bool has_digest(const io::Hdf5File& file, const io::Hdf5Dataset& dataset, const std::string& path) {
  return dataset.description().kind == io::Hdf5Description::Kind::real && dataset.description().element_bytes == 4 &&
         file.has_attribute(path, "digest");
}

Contents::Entry entry_of(const io::Hdf5File& file, const std::string& path) {
  const io::Hdf5Dataset dataset = file.dataset(path);
  validate(dataset.description().kind == io::Hdf5Description::Kind::real, "{}: is not of real numbers", dataset.place());
  Contents::Entry entry{path, shape_of(dataset), 0, has_digest(file, dataset, path)};
  if (entry.has_digest) entry.digest = file.attribute_uint(path, "digest");
  return entry;
}

/// Reads the rows of a piece in rounds of bounded size.
void read_rows(const io::Hdf5Dataset& dataset, const Piece& piece, std::vector<float>& staging) {
  const parallel::ParameterSpec& spec = *piece.spec;
  const std::int64_t step = rows_a_round(spec);
  for (std::int64_t begin = piece.row_begin; begin < piece.row_end; begin += step) {
    const std::int64_t end = std::min(piece.row_end, begin + step);
    const Box box = box_of_rows(spec, begin, end);
    float* rows = piece.data + (begin - piece.row_begin) * spec.row_elements();
    if (spec.inner == parallel::InnerOrder::plain) {
      dataset.read(box.start, box.count, io::Hdf5Number::float32, rows);
      continue;
    }
    staging.resize(std::max(staging.size(), static_cast<std::size_t>((end - begin) * spec.row_elements())));
    dataset.read(box.start, box.count, io::Hdf5Number::float32, staging.data());
    to_memory_order(spec, end - begin, staging.data(), rows);
  }
}

[[noreturn]] void wrong_digest(const std::string& path, const std::string& tensor) {
  throw InputError(fmt::format("{}: the values of {} do not match its digest: the file is damaged; `trireme verify` says where", path, tensor));
}

/// A digest of parts that lie on several ranks: right where all of them together read every row equally often.
void check_parts(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces, const std::vector<std::uint64_t>& parts,
                 const std::vector<std::uint64_t>& stored, const std::vector<std::uint64_t>& known) {
  if (!same_everywhere(world, fingerprint_of(pieces))) return;  // ranks that read different tensors have checked their whole ones
  std::vector<std::uint64_t> rows, cover, sums = parts, digests = stored, digest_known = known;
  for (const Piece& piece : pieces) {
    rows.push_back(static_cast<std::uint64_t>(piece.row_end - piece.row_begin));
    cover.push_back(cover_of(piece.row_begin, piece.row_end));
  }
  world.all_reduce(std::span(rows), comm::Reduction::sum);
  world.all_reduce(std::span(cover), comm::Reduction::sum);
  world.all_reduce(std::span(sums), comm::Reduction::sum);
  world.all_reduce(std::span(digests), comm::Reduction::max);
  world.all_reduce(std::span(digest_known), comm::Reduction::max);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::int64_t whole = pieces[i].spec->rows();
    const std::uint64_t times = rows[i] / static_cast<std::uint64_t>(whole);
    const bool covered = rows[i] % static_cast<std::uint64_t>(whole) == 0 && cover[i] == times * cover_of(0, whole);
    if (digest_known[i] != 0 && covered && sums[i] != times * digests[i]) wrong_digest(path, pieces[i].path);
  }
}

}  // namespace

Contents read_contents(const std::string& path) {
  const io::Hdf5File file = open_checkpoint(path);
  Contents contents;
  contents.sealed = has_seal(path);
  contents.info.step = count_of(file, "step");
  contents.info.epoch = count_of(file, "epoch");
  contents.info.epoch_samples = count_of(file, "epoch_samples");
  contents.info.samples = count_of(file, "samples");
  if (file.has_attribute("/", "deck")) contents.info.deck = file.attribute_string("/", "deck");
  if (file.has("state")) contents.info.state = file.attributes("state");
  contents.info.updates = count_of(file, "updates", "/optimizer");
  if (file.has("classes")) contents.info.classes = file.read_strings("classes");
  for (const std::string& tensor : tensor_paths(file)) contents.tensors.push_back(entry_of(file, tensor));
  return contents;
}

void read(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces) {
  std::vector<std::uint64_t> parts(pieces.size()), stored(pieces.size()), known(pieces.size());
  comm::together(world, [&] {
    const io::Hdf5File file = open_checkpoint(path);
    std::vector<float> staging;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      if (piece.row_begin >= piece.row_end) continue;
      validate(file.has(piece.path), "{}: has no tensor {}, which the model of the deck needs (another model?)", path, piece.path);
      const io::Hdf5Dataset dataset = file.dataset(piece.path);
      const Shape shape = shape_of(dataset);
      validate(shape == piece.spec->shape, "{}: {} has shape {}, where the model of the deck needs {}", path, piece.path, to_string(shape),
               to_string(piece.spec->shape));
      validate(dataset.description().kind == io::Hdf5Description::Kind::real, "{}: is not of real numbers", dataset.place());
      read_rows(dataset, piece, staging);
      if (!has_digest(file, dataset, piece.path)) continue;
      known[i] = 1;
      stored[i] = file.attribute_uint(piece.path, "digest");
      parts[i] = digest_rows(*piece.spec, piece.row_begin, piece.row_end, piece.data);
      if (piece.row_end - piece.row_begin == piece.spec->rows() && parts[i] != stored[i]) wrong_digest(path, piece.path);
    }
  });
  check_parts(world, path, pieces, parts, stored, known);
}

std::vector<float> read_tensor(const std::string& path, const std::string& tensor) {
  const io::Hdf5File file = io::Hdf5File::open(path);
  const io::Hdf5Dataset dataset = file.dataset(tensor);
  std::vector<float> values(static_cast<std::size_t>(dataset.description().elements()));
  dataset.read_all(io::Hdf5Number::float32, values.data());
  return values;
}

}  // namespace trireme::checkpoint
