// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/device/device.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// Thrown for a checkpoint whose format version is newer than this program. A restart must not skip
/// such a file for an older one: it would lose the training in between.
class NewerFormat : public InputError {
 public:
  using InputError::InputError;
};

/// A range of rows of one tensor that this rank writes or reads. These are the local rows
/// [row_begin, row_end) of its partition: float32, in memory order. write() and read() convert rows
/// from and to file order.
struct TensorSlice {
  /// Path of the dataset in the file, without the leading slash: "model/conv1.weight",
  /// "optimizer/momentum/fc.bias".
  std::string path;
  /// Global shape and the orders of the tensor in the file and in memory.
  const parallel::ParameterSpec* spec = nullptr;
  /// Local rows of the partition. write() accepts an empty range, for a rank that holds no rows of
  /// this tensor.
  std::int64_t row_begin = 0, row_end = 0;
  /// First element of row row_begin. write() reads from here, read() writes here.
  float* data = nullptr;
  /// The rows and columns that this rank of the tensor group holds; null: the whole tensor.
  const parallel::TensorPartition* partition = nullptr;
  /// Stream of the device that uses `data`, which is in device or host memory. write() and read()
  /// wait for its work before they touch `data`.
  Stream stream = {};
  /// Optimizer state that counts updates from its own start (Info::updates_before).
  bool counts_updates = false;
  /// The grid that the file has in place of spec->grid: read() interpolates it, write() ignores it.
  std::optional<parallel::PositionGrid> stored_grid = {};
};

/// A value of an attribute of /state. An unsigned integer below 2^63 is read back from a file as a
/// signed one.
using Value = std::variant<std::int64_t, std::uint64_t, double, std::string>;

/// The metadata of a checkpoint: everything but the tensors.
struct Info {
  std::int64_t step = 0, epoch = 0, epoch_samples = 0, samples = 0;
  /// Optimizer updates that were applied (steps may be skipped). An attribute of /optimizer.
  std::int64_t updates = 0;
  /// By weight: the updates that were applied before its moments (exp_avg, exp_avg_sq) began. Only
  /// weights that a restart thawed are listed. The attribute `updates_before` of the moments.
  std::map<std::string, std::int64_t> updates_before;
  std::string deck;                    ///< the resolved deck, TOML
  std::vector<std::string> classes;    ///< class names (dataset /classes); may be empty
  std::map<std::string, Value> state;  ///< attributes of /state
  /// The program that wrote the file, with its libraries, in one line; may be empty. No part of any
  /// digest.
  std::string written_by;
};

/// Size, timings and digest of a checkpoint that was written.
struct WriteReport {
  std::int64_t bytes = 0;
  double seconds = 0;  ///< seconds of work, without waiting for the caller
  /// Part of `seconds`: layout, values and their flush. Excludes digests, reading back, seal and
  /// rename.
  double writing_seconds = 0;
  /// Part of `seconds`: the copy to host memory. A GPU makes it while training continues. 0 for
  /// write().
  double copy_seconds = 0;
  /// Part of `seconds`: the work on the caller's thread, without the copy. 0 for write().
  double caller_seconds = 0;
  std::uint64_t digest = 0;  ///< combined_digest() of all tensors
};

/// Gives a finished checkpoint its final name by StagedFile::commit(), or throws if it must not.
/// Called on rank 0, by any thread.
using Publisher = std::function<void(io::StagedFile& file)>;
/// The publisher that always commits.
void commit(io::StagedFile& file);

/// Writes a checkpoint and returns when it is on the disk under `path`. Collective. Fails on all
/// ranks when it fails on one, and then removes the temporary file. Throws Failure (no free space,
/// disk errors, slices that do not cover every element exactly once) and InputError (a path that
/// cannot be written).
///
/// All ranks name the same tensors in the same order, with an empty row range where they hold none.
/// If several ranks hold copies of an element, exactly one of them may write it.
///
///   1. check coverage and free disk space                       collective
///   2. digests of the values in memory                          each rank, then a sum
///   3. lay out all datasets (contiguous, early, no fill)        rank 0, HDF5
///   4. write tensors split by columns, rounds of 64 MiB         collective, MPI-IO
///   5. write all other rows in place with pwrite, flush         each rank
///   6. read the file back, compare digests                      each rank its share of the blocks
///   7. write the seal, flush, rename, flush the folder          rank 0, by `publish`
WriteReport write(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, const Info& info,
                  const Publisher& publish = commit);

/// The metadata and the list of tensors of a file, without the tensors' values.
struct Contents {
  struct Entry {
    std::string path;
    Shape shape;
    std::uint64_t digest = 0;
    bool has_digest = false;
  };
  Info info;
  std::vector<Entry> tensors;  ///< sorted by path
  bool sealed = false;         ///< false: written by another program
  /// The index of the file, on the rank that made it; read() takes it to spare a second one.
  std::shared_ptr<const io::Hdf5Index> index;
};

/// Throws InputError if `path` is a folder; the message names the files to use instead.
void reject_folder(const std::string& path);

/// Returns metadata, shapes and digests of a checkpoint. Throws InputError with file and object,
/// NewerFormat if the version is too new.
Contents read_contents(const io::Hdf5Index& file);
/// Indexes the file, which is untrusted (io/hdf5/hdf5_index.hpp), and returns its contents. Called
/// by one rank; not collective.
Contents read_contents(const std::string& path);
/// Reads the contents on rank 0 and returns them on every rank. Collective.
Contents read_contents(const comm::Communicator& world, const std::string& path);

/// Reads the slices from a checkpoint into memory and checks their digests. Collective. Each rank
/// names the rows that it wants; ranks may name different tensors. Empty slices are skipped.
/// Slices with `stored_grid` are interpolated (docs/reference/numerics.md).
///
/// Digests are checked against the values in memory if all ranks together hold each element equally
/// often. Otherwise the ranks read the tensor a second time, each its share of the rows. Tensors
/// without a digest are not checked.
///
/// Throws InputError with tensor and file: missing tensor, different shape, wrong digest, infinite
/// or NaN value.
///
/// `index`: of the file, on rank 0 (Contents::index). Without it rank 0 indexes the file.
void read(const comm::Communicator& world, const std::string& path,
          std::span<const TensorSlice> slices,
          std::shared_ptr<const io::Hdf5Index> index = nullptr);

/// Sets all rows of the slices to 0, in device or host memory.
void set_to_zero(std::span<const TensorSlice> slices);

/// Returns one digest over names and digests of all tensors, for `inspect --digest`: the sum over
/// tensors of mix64(digest ^ random_key(0, path)), modulo 2^64.
std::uint64_t combined_digest(const std::vector<Contents::Entry>& tensors);

/// Returns the contribution of local rows [row_begin, row_end) to the digest of the tensor.
/// Elements are numbered by their index in the whole tensor, in file order
/// (docs/reference/files.md). The sum over partitions that cover the tensor once is therefore its
/// digest.
std::uint64_t digest_rows(const parallel::ParameterSpec& spec,
                          const parallel::TensorPartition& partition, std::int64_t row_begin,
                          std::int64_t row_end, const float* rows);

}  // namespace trireme::checkpoint
