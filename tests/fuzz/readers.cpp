// SPDX-License-Identifier: Apache-2.0
//
// The readers of untrusted files that are fuzzed, and the limits of their cost.
//
// Each function reads one file and uses what it describes, as the commands of the program do: the
// images of an archive are decoded, the values of a dataset are read. Those of texts and tokens are
// in token_readers.cpp. driver.cpp (own mutations) and libfuzzer.cpp call them.
#include "readers.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <nlohmann/json.hpp>

#include "data/sources/idx.hpp"
#include "datagram_reader.hpp"
#include "formats.hpp"
#include "input_folder.hpp"
#include "io/hdf5/hdf5_report.hpp"
#include "reader_tools.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/weights/safetensors.hpp"
#include "trireme/checkpoint/weights/transformers_config.hpp"
#include "trireme/checkpoint/weights/weight_files.hpp"
#include "trireme/data/images/image.hpp"
#include "trireme/data/sources/image_catalog.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"
#include "trireme/io/json.hpp"
#include "trireme/io/seal.hpp"
#include "trireme/monitor/environment_json.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/monitor/run_folder.hpp"

// The allocator keeps few freed blocks, so that the memory of the process is that of the reader.
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=16:max_allocation_size_mb=512";
}

namespace trireme::fuzz {
namespace {

// ---- images

/// Decodes rectangles of an image at several resolutions.
void read_parts(std::span<const std::byte> file, data::ImageExtents extents) {
  const std::int64_t height = extents.height, width = extents.width;
  for (const data::PixelBox& box : {data::PixelBox{0, 0, height, width},
                                    {height / 4, width / 4, (height + 1) / 2, (width + 1) / 2},
                                    {height - 1, width - 1, 1, 1},
                                    {0, width / 2, height, 1},
                                    {height / 2, 0, 1, width}}) {
    for (const std::int64_t divisor : {1, 2, 4, 8}) {
      const data::ImageExtents smallest{std::max<std::int64_t>(box.height / divisor, 1),
                                        std::max<std::int64_t>(box.width / divisor, 1)};
      accepts([&] {
        const data::ImagePart part = data::decode_part(
            file, [&](data::ImageExtents) { return box; },
            divisor == 1 ? std::nullopt : std::optional(smallest));
        const data::Image& pixels = part.image;
        expect(std::ssize(pixels.pixels) == pixels.height * pixels.row_bytes(), "size of a part");
        const data::FractionalBox at = part.locate(box);
        expect(at.top >= 0 && at.left >= 0 &&
                   at.top + at.height <= static_cast<double>(pixels.height) &&
                   at.left + at.width <= static_cast<double>(pixels.width),
               "a part without its rectangle");
      });
    }
  }
}

bool read_image(const std::string& bytes) {
  const auto file = std::as_bytes(std::span(bytes));
  const data::ImageExtents extents = data::read_image_extents(file);
  // Large images take up to seconds. One of 32, chosen by its bytes, is decoded, and no parts of
  // it: decode_image() is the most expensive function.
  constexpr std::int64_t small_pixels = 1 << 16, large_pixels = 1 << 21;
  const std::int64_t pixels = extents.height * extents.width;
  if (pixels > large_pixels && io::xxh3(bytes.data(), bytes.size()) % 32 != 0) return true;
  if (pixels <= small_pixels) read_parts(file, extents);
  const data::Image image = data::decode_image(file);
  expect(extents == data::ImageExtents{image.height, image.width}, "extents of the header");
  expect(std::ssize(image.pixels) == image.height * image.row_bytes(), "size of an image");
  return true;
}

std::vector<std::string> jpeg_seeds() {
  std::vector<std::string> files = {jpeg_file(24, 16, false), jpeg_file(19, 33, true)};
  // The scans of a progressive file once more.
  const std::string& last = files.back();
  files.push_back(last.substr(0, last.size() - 2) + last.substr(last.find("\xff\xda")));
  return files;
}

std::vector<std::string> png_seeds() {
  constexpr int gray = 0, palette = 3, rgba = 6;
  return {png_file(9, 7, 3), png_file(5, 12, 1),
          png_file(4, 8, 1, gray, false, std::string("\0\1\0\2\0\3\0\4", 8)),
          png_file(2, 4, 4, palette, false, std::string("\0\1\2\0\3\4", 6)),
          png_file(2, 2, 16, rgba, true, std::string(35, '\1'))};
}

/// Decompresses a cataloged file if it is compressed, and reads up to 64 of the images.
bool read_catalog(data::ImageCatalog& catalog) {
  const std::string bytes = data::to_bytes(catalog);
  expect(data::to_bytes(data::image_catalog_from_bytes(bytes)) == bytes, "catalog as bytes");
  if (!catalog.compressed.empty()) {
    const std::string content = InputFolder::of_process() / "content";
    data::decompress(catalog.files[0], content);
    catalog.content = {content};
  }
  data::CatalogReader reader(catalog);
  for (const data::CatalogEntry& entry :
       std::span(catalog.entries).first(std::min<std::size_t>(catalog.entries.size(), 64)))
    accepts([&] { reader.read(entry); });
  accepts([&] { data::assign_labels(catalog, {}, {}, 0, std::ssize(catalog.entries)); });
  return true;
}

// ---- sources of images

bool read_tar(const std::string& bytes) {
  const std::string path = write_input(bytes);
  accepts([&] { data::catalog_tar({path}, "left.png"); });
  data::ImageCatalog catalog = data::catalog_tar({path});
  return read_catalog(catalog);
}

std::vector<std::string> tar_seeds() {
  const std::string png = png_file(3, 3, 3), jpeg = jpeg_file(8, 8, false);
  const std::string folders = tar_file({{"a/", ""}, {"a/1.png", png}, {"b/2.jpg", jpeg}});
  const std::string samples = tar_file({{"1.png", png},
                                        {"1.cls", "3"},
                                        {"2.jpg", jpeg},
                                        {"2.json", "{\"label\": \"cat\"}"},
                                        {"3.txt", "dog\n"}});
  const std::string nested = tar_file({{"x.tar", tar_file({{"1.png", png}})}});
  // The name of the next file, in the forms of GNU and of POSIX.
  std::string gnu = tar_file({{"long", std::string(120, 'n') + ".png"}, {"short", png}});
  gnu[156] = 'L';
  std::string posix = tar_file({{"pax", "16 path=b/1.png\n"}, {"short", png}});
  posix[156] = 'x';
  std::string sparse_map = "1\n0\n4\n";
  sparse_map.resize(512, '\0');
  std::string sparse = tar_file({{"pax",
                                  "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
                                  "27 GNU.sparse.name=a/1.png\n"
                                  "26 GNU.sparse.realsize=64\n"},
                                 {"a/1.png", sparse_map + "data"}});
  sparse[156] = 'x';
  const std::string again = tar_file({{"1.0.png", png},
                                      {"1.0.cls", "3"},
                                      {"2.left.png", png},
                                      {"2.cls", "1"},
                                      {"1.0.png", png},
                                      {"1.0.cls", "4"}});
  std::string link = tar_file({{"a/1.png", png}, {"b/2.png", ""}});
  const std::size_t header = link.rfind("b/2.png");
  link[header + 156] = '1';
  link.replace(header + 157, 7, "a/1.png");
  std::vector<std::string> files = {folders, samples, nested, gnu, posix, sparse, again, link};
  for (std::string& file : files) repair_tar(file);
  files.push_back(gzip_file(samples));
  const std::vector<std::string> packed = packed_tar_files(png);
  files.insert(files.end(), packed.begin(), packed.end());
  return files;
}

bool read_records(const std::string& bytes) {
  const std::string path = write_input(bytes);
  const std::string labels = InputFolder::of_process().write("labels", idx_file({3}));
  const bool is_labels = accepts([&] {
    data::IdxReader reader(path, data::IdxReader::Items::labels);
    reader.skip(reader.shape()[0]);
    reader.finish();
  });
  std::optional<data::ImageCatalog> catalog;
  const bool is_idx = accepts([&] { catalog = data::catalog_idx({path, labels}); });
  if (is_labels && !is_idx) return true;
  if (!is_idx) catalog = data::catalog_cifar({path});
  return read_catalog(*catalog);
}

std::vector<std::string> record_seeds() {
  std::string cifar10 = some_bytes(2 * 3073), cifar100 = some_bytes(3074);
  cifar10[0] = cifar10[3073] = 7;
  cifar100[0] = cifar100[1] = 19;
  return {idx_file({3, 4, 5}),
          idx_file({3, 2, 2, 3}),
          idx_file({40}),
          gzip_file(idx_file({3, 4, 5})),
          gzip_file(idx_file({40})),
          cifar10,
          cifar100};
}

/// Reads the file of labels of a fixed catalog of images.
bool read_labels(const std::string& bytes) {
  data::ImageCatalog catalog;
  catalog.files = {"photos"};
  for (const char* name : {"a/1.png", "a/2.png", "b/2.png", "b/x y.jpg"}) {
    data::CatalogEntry& entry = catalog.entries.emplace_back();
    entry.name = name;
    entry.offset = data::whole_file;
  }
  const auto count = std::ssize(catalog.entries);
  data::ImageCatalog with_classes = catalog;
  const bool named = accepts(
      [&] { data::assign_labels(with_classes, {"cat", "dog"}, {"labels", bytes}, 0, count); });
  const bool alone =
      accepts([&] { data::assign_labels(catalog, {}, {"labels", bytes}, 0, count); });
  return named || alone;
}

std::vector<std::string> label_seeds() {
  return {
      "image,label\na/1.png,cat\na/2.png,dog\nb/2.png,cat\nb/x y.jpg,dog\n",
      "a/1.png\t0\na/2.png\t1\nphotos/b/2.png\t0\nx y\t1",
      "a/1.png 0\r\na/2.png 1\r\nb/2.png 1\r\nx y,0\r\n",
      "\"a/1.png\",\"cat\",1\na/2.png \"dog\"\nb/2.png,dog 1 2 3 4\n\"b/x y.jpg\",\"d\"\"o, g\""};
}

// ---- HDF5 and checkpoints

constexpr std::int64_t hdf5_file_bytes = 1 << 16, packed_chunk_at = 4096;

/// Reads values of a dataset: whole rows, at most 2^16 elements.
void use_dataset(const io::File& file, const io::StoredDataset& dataset) {
  if (!dataset.is_number()) return;
  constexpr std::int64_t max_elements = 1 << 16;
  std::vector<std::int64_t> start(dataset.shape.size(), 0), count = dataset.shape;
  const std::int64_t elements = dataset.elements();
  if (elements > max_elements) {
    const std::int64_t row = elements / dataset.shape[0];
    if (row > max_elements) return;
    count[0] = std::min(count[0], max_elements / row);
    start[0] = dataset.shape[0] - count[0];
  }
  std::vector<double> reals(static_cast<std::size_t>(max_elements));
  std::vector<std::int64_t> integers(static_cast<std::size_t>(max_elements));
  accepts([&] {
    io::read_values(file, dataset, start, count, io::Hdf5Number::float64, reals.data());
    io::read_values(file, dataset, start, count, io::Hdf5Number::int64, integers.data());
    io::read_values(file, dataset, start, count, io::Hdf5Number::uint8, integers.data());
  });
}

/// Returns the paths of all objects of a report that Hdf5Index has accepted.
std::vector<std::string> objects_of(const std::string& report) {
  std::vector<std::string> paths;
  for (ByteReader reader(report); !reader.at_end();)
    paths.push_back(io::detail::object_from_bytes(reader.get_view()).path);
  return paths;
}

/// The input is the report of the child process about a file of 64 KiB.
bool read_hdf5_report(const std::string& bytes) {
  static const std::string path = [] {
    std::string content = some_bytes(hdf5_file_bytes);
    const std::string chunk = deflate(some_bytes(64));
    content.replace(packed_chunk_at, chunk.size(), chunk);
    return InputFolder::of_process().write("file.h5", content);
  }();
  const io::File file(path, io::File::Mode::read);
  const io::Hdf5Index index(path, hdf5_file_bytes, bytes);
  for (const std::string& object : objects_of(bytes)) {
    accepts([&] { index.has(object); });
    accepts([&] { index.attributes(object); });
    accepts([&] { index.strings(object); });
    accepts([&] { index.list_datasets(object); });
    accepts([&] { use_dataset(file, index.dataset(object)); });
    for (const char* name : {"a", "b"}) {
      accepts([&] { index.attribute_int(object, name); });
      accepts([&] { index.attribute_uint(object, name); });
      accepts([&] { index.attribute_double(object, name); });
      accepts([&] { index.attribute_string(object, name); });
      accepts([&] { index.attribute_strings(object, name); });
    }
  }
  return true;
}

std::vector<std::string> hdf5_report_seeds() {
  using io::detail::ReportedDataset;
  using io::detail::ReportedObject;
  const auto record = [](const ReportedObject& object) {
    ByteWriter bytes;
    bytes.put_string(io::detail::to_bytes(object));
    return bytes.take();
  };
  const auto object = [](const char* path, ReportedObject::Kind kind) {
    ReportedObject made;
    made.path = path;
    made.kind = kind;
    return made;
  };
  const auto attribute = [](const char* name, const io::Hdf5Value& value) {
    io::detail::ReportedAttribute made;
    made.name = name;
    made.value = value;
    return made;
  };
  ReportedObject root = object("", ReportedObject::Kind::group);
  root.attributes = {attribute("a", std::int64_t{3}), attribute("b", "text")};
  root.attributes[1].is_text = true;
  root.attributes[1].strings = {"text"};
  ReportedObject link = object("l", ReportedObject::Kind::soft_link);
  link.target = "/g";
  const ReportedObject group = object("g", ReportedObject::Kind::group);
  ReportedObject numbers = object("g/x", ReportedObject::Kind::dataset);
  ReportedDataset& plain = numbers.dataset.emplace();
  plain.kind = io::StoredDataset::Kind::integer;
  plain.element_bytes = 4;
  plain.is_signed = plain.native_order = true;
  plain.shape = {6, 5};
  plain.offset = 512;
  ReportedObject chunked = numbers;
  chunked.path = "c";
  chunked.dataset->layout = ReportedDataset::Layout::chunked;
  chunked.dataset->shape = {7, 4};
  chunked.dataset->chunk = {4, 4};
  chunked.dataset->filters = {{2, 4, "shuffle"}, {1, 6, "deflate"}};
  const auto chunk_bytes = static_cast<std::uint32_t>(deflate(some_bytes(64)).size());
  chunked.dataset->chunks = {{packed_chunk_at, chunk_bytes, 0}, {512, 64, 3}};
  ReportedObject compact = numbers;
  compact.path = "p";
  compact.dataset->kind = io::StoredDataset::Kind::real;
  compact.dataset->layout = ReportedDataset::Layout::compact;
  compact.dataset->shape = {2};
  compact.dataset->values = "\1\2\3\4\5\6\7\x08";
  ReportedObject texts = numbers;
  texts.path = "t";
  texts.dataset->kind = io::StoredDataset::Kind::text;
  texts.dataset->shape = {2};
  texts.dataset->strings = {"one", "two"};
  return {record(root), record(root) + record(group) + record(link) + record(numbers),
          record(root) + record(chunked), record(root) + record(compact) + record(texts)};
}

bool read_seal(const std::string& bytes) {
  const std::string path = write_input(bytes);
  io::has_seal(path);
  const std::string head = io::check_seal(path, io::SealCheck::head);
  const std::string seal = io::check_seal(path);
  expect(!io::is_damage(head) || io::is_damage(seal), "a damaged head in an intact file");
  return seal.empty();
}

std::vector<std::string> seal_seeds() { return {sealed_file(100), sealed_file(5000)}; }

bool read_safetensors(const std::string& bytes) {
  const checkpoint::SafetensorsReader reader(write_input(bytes));
  for (const auto& entry : reader.entries()) accepts([&] { reader.read_float32(entry.first); });
  return true;
}

std::vector<std::string> safetensors_seeds() {
  return {safetensors_file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
          safetensors_file(R"({"__metadata__":{"format":"pt"},)"
                           R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
                           R"("b":{"dtype":"F64","shape":[],"data_offsets":[6,14]},)"
                           R"("c":{"dtype":"F16","shape":[0],"data_offsets":[14,14]},)"
                           R"("d":{"dtype":"I8","shape":[1,1],"data_offsets":[14,15]}} )",
                           15),
          safetensors_file("{}", 0)};
}

// ---- files of a run folder

/// Reads metrics.jsonl, and compares its rows with the documents of its lines. Returns their
/// number.
std::int64_t read_rows(const std::string& path, const std::string& bytes) {
  const std::vector<std::string> keys{"kind", "loss", "x"};
  monitor::MetricsReader row(path, keys);
  const io::JsonLimits limits{.depth = 8};
  std::int64_t rows = 0;
  std::size_t begin = 0;
  for (std::size_t end; (end = bytes.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = bytes.substr(begin, end - begin);
    if (line.empty()) continue;
    nlohmann::json object;
    if (!accepts([&] { object = io::parse_json_object<nlohmann::json>(line, "line", limits); }))
      continue;
    ++rows;
    expect(row.next() && row.line() == line, "a row is skipped");
    for (const std::string& key : keys)
      expect(nlohmann::json(row[key]) == object.value(key, nlohmann::json()), "another value");
  }
  expect(!row.next(), "more rows than lines");
  return rows;
}

/// Reads the input as each of the records that a start or `trireme inspect` reads back.
bool read_json(const std::string& bytes) {
  const InputFolder& folder = InputFolder::of_process();
  const io::JsonLimits limits;
  const bool is_json = accepts([&] {
    const auto json = io::parse_json<nlohmann::json>(bytes, "input", limits);
    const auto again = io::parse_json<nlohmann::ordered_json>(bytes, "input", limits);
    expect(nlohmann::json(again) == json, "the order of members changes a value");
  });
  expect(!is_json || nlohmann::json::accept(bytes), "a text that is not JSON");
  const std::int64_t rows = read_rows(folder.write("metrics.jsonl", bytes), bytes);
  Log quiet(false);
  const std::string environment = folder.write("environment.json", bytes);
  monitor::EnvironmentEntry entry;
  entry.time = "now";
  monitor::append_environment(monitor::RunFolder(folder / "."), entry, quiet);
  expect(io::read_json_file<nlohmann::json>(environment,
                                            {.bytes = std::int64_t{16} << 20, .values = 2'000'000})
             .is_array(),
         "environment.json");
  std::filesystem::remove(environment + io::damaged_suffix);
  return is_json || rows > 0;
}

std::vector<std::string> json_seeds() {
  return {R"({"start": "2026-01-02T03:04:05Z", "code": 75, "reason": "a \"b\"\n", "step": 12})",
          R"([{"time": "x", "hosts": ["a", "b"], "ranks": 2}, {"unknown": {"a": [1.5e3, null]}}])",
          "{\"kind\": \"train\", \"loss\": 0.5}\n{\"kind\": \"event\", \"x\": true}\n",
          R"({"checkpoint": "step_000000008.h5", "starts": 2})"};
}

// ---- files beside the weights of a model

bool read_model_config(const std::string& bytes) {
  const auto config = checkpoint::read_transformers_config(write_input(bytes));
  if (!config) return false;
  for (const std::int64_t count : {config->layers, config->heads, config->kv_heads, config->width,
                                   config->mlp_width, config->vocabulary, config->context})
    expect(count > 0, "an extent of a model");
  expect(config->norm_epsilon >= 0 && config->rope_base >= 0, "a number of a model");
  return true;
}

std::vector<std::string> model_config_seeds() {
  return {R"({"model_type":"gpt2","n_layer":2,"n_head":3,"n_embd":6,"n_inner":null,)"
          R"("n_positions":8,"vocab_size":9,"layer_norm_epsilon":1e-05,)"
          R"("activation_function":"gelu_new","tie_word_embeddings":true})",
          R"({"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,)"
          R"("num_key_value_heads":2,"hidden_size":8,"head_dim":2,"intermediate_size":12,)"
          R"("rms_norm_eps":1e-06,"rope_theta":500000.0,"rope_scaling":null,)"
          R"("attention_bias":false,"mlp_bias":false,"hidden_act":"silu"})",
          R"({"model_type":"mistral","sliding_window":null,"layer_types":["full_attention"],)"
          R"("rope_parameters":{"rope_theta":10000.0,"rope_type":"default"}})"};
}

/// The input is an index beside two files with the tensors a, b and c.
bool read_weight_index(const std::string& bytes) {
  static const std::string path = [] {
    const InputFolder& folder = InputFolder::of_process();
    folder.write("1.safetensors",
                 safetensors_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                  R"("module.b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})",
                                  8));
    folder.write("2.safetensors",
                 safetensors_file(R"({"c":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2));
    return folder / "index.json";
  }();
  InputFolder::of_process().write("index.json", bytes);
  const auto files = checkpoint::read_weight_index(path);
  for (const auto& [tensor, file] : files)
    expect(file.find('/') == std::string::npos && file.ends_with(".safetensors"), "a foreign file");
  accepts([&] {
    const checkpoint::WeightFiles weights(path);
    expect(weights.tensors().size() == files.size(), "tensors of an index");
    for (const auto& each : weights.tensors()) weights.read_float32(each.first);
  });
  return true;
}

std::vector<std::string> weight_index_seeds() {
  return {R"({"metadata":{"total_size":10},"weight_map":{"a":"1.safetensors",)"
          R"("module.b":"1.safetensors","c":"2.safetensors"}})",
          R"({"weight_map":{"c":"2.safetensors"}})"};
}

const Reader readers[] = {
    {"jpeg", read_image, jpeg_seeds, nullptr},
    {"png", read_image, png_seeds, repair_png},
    {"tar", read_tar, tar_seeds, repair_tar},
    {"records", read_records, record_seeds, nullptr},
    {"labels", read_labels, label_seeds, nullptr},
    {"hdf5_report", read_hdf5_report, hdf5_report_seeds, nullptr},
    {"seal", read_seal, seal_seeds, repair_seal},
    {"safetensors", read_safetensors, safetensors_seeds, nullptr},
    {"datagrams", read_datagrams, datagram_seeds, repair_datagrams},
    {"json", read_json, json_seeds, nullptr},
    {"model_config", read_model_config, model_config_seeds, nullptr},
    {"weight_index", read_weight_index, weight_index_seeds, nullptr},
};

/// Returns the processor time of this process.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Sends SIGPROF to this process after far more processor time than allowed, for an input that
/// never ends.
void limit_processor_time() {
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(5 * max_seconds);
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

/// Returns the most memory that this process has had.
std::int64_t peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

// AddressSanitizer keeps one byte about eight, and some around each block.
#if defined(__SANITIZE_ADDRESS__) || defined(TRIREME_LIBFUZZER)
constexpr std::int64_t allowed_megabytes = max_megabytes + max_megabytes / 4;
#else
constexpr std::int64_t allowed_megabytes = max_megabytes;
#endif

}  // namespace

std::span<const Reader> all_readers() {
  static const std::vector<Reader> all = [] {
    std::vector<Reader> together(std::begin(readers), std::end(readers));
    together.insert(together.end(), token_readers().begin(), token_readers().end());
    return together;
  }();
  return all;
}

const Reader* find_reader(std::string_view name) {
  for (const Reader& reader : all_readers())
    if (reader.name == name) return &reader;
  return nullptr;
}

std::string read_within_limits(const Reader& reader, const std::string& bytes) {
  static const std::int64_t before = peak_megabytes();
  limit_processor_time();
  const double start = processor_seconds();
  std::string refusal;
  try {
    if (!reader.read(bytes)) refusal = "is of another format";
  } catch (const InputError& error) {
    refusal = error.what();
  }
  const double seconds = processor_seconds() - start;
  if (seconds > max_seconds)
    throw std::runtime_error(
        fmt::format("took {:.1f} s of processor time, more than {} s", seconds, max_seconds));
  const std::int64_t megabytes = peak_megabytes() - before;
  if (megabytes > allowed_megabytes)
    throw std::runtime_error(
        fmt::format("took {} MB of memory, more than {}", megabytes, allowed_megabytes));
  return refusal;
}

}  // namespace trireme::fuzz
