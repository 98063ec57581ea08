#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/device/device.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// A checkpoint of a format that only a newer program knows: not damaged, and not to be passed
/// over.
class NewerFormat : public InputError {
 public:
  using InputError::InputError;
};

/// Rows [row_begin, row_end) of this rank's part of one global tensor: float32, each row in memory
/// order. `spec` gives the global shape, the file's order and the inner order (the inner order of a
/// row is turned on the way), `part` what of it this rank of the tensor group holds.
struct TensorSlice {
  std::string path;  ///< in the file, without the leading slash: "model/conv1.weight",
                     ///< "optimizer/momentum/fc.bias"
  const parallel::ParameterSpec* spec = nullptr;
  std::int64_t row_begin = 0, row_end = 0;  ///< local rows of the part
  float* data = nullptr;  ///< first element of row_begin; read when writing, written when reading
  const parallel::TensorPartition* partition = nullptr;  ///< null: the whole tensor
  Stream stream = {};  ///< of the device that works with `data`, in its memory or in the host's:
                       ///< its work so far is waited for
};

/// An unsigned number below 2^63 is read back from a file as a signed one.
using Value = std::variant<std::int64_t, std::uint64_t, double, std::string>;

/// All of a checkpoint that is not a tensor.
struct Info {
  std::int64_t step = 0, epoch = 0, epoch_samples = 0, samples = 0;
  std::int64_t updates = 0;            ///< steps really applied; an attribute of /optimizer
  std::string deck;                    ///< resolved TOML
  std::vector<std::string> classes;    ///< dataset /classes, may be empty
  std::map<std::string, Value> state;  ///< attributes of /state
};

struct WriteReport {
  std::int64_t bytes = 0;
  double seconds = 0;          ///< of work, without waiting for the caller
  double writing_seconds = 0;  ///< of these: layout, values and their flush, without digests,
                               ///< reading back, seal and rename
  double copy_seconds = 0;     ///< of these: the copy of what is written beside training; a device
                               ///< makes it while it works on
  double caller_seconds =
      0;  ///< of these: on the caller's thread where another one writes, without the copy
  std::uint64_t digest = 0;  ///< over all tensors (docs/contract section 9)
};

/// Writes a checkpoint collectively: all datasets laid out by HDF5 (contiguous, early, no fill) on
/// rank 0, whole rows written in place by the rank that has them, rows of which ranks hold columns
/// by collective hyperslab writes in rounds of bounded size, digests from memory, fsync, read-back,
/// seal, fsync, rename to `path`, fsync of the folder. The pieces of all ranks together cover each
/// element of each tensor exactly once (of a tensor that several ranks hold, the caller chooses who
/// names which rows); every rank names every tensor (with no rows where it holds none), in one
/// order. An error on one rank is thrown on all, and the temporary file is removed. Room on disk is
/// checked first.
WriteReport write(const comm::Communicator& world, const std::string& path,
                  std::span<const TensorSlice> slices, const Info& info);

/// What a file says of itself, without its tensors' values.
struct Contents {
  struct Entry {
    std::string path;
    Shape shape;
    std::uint64_t digest = 0;
    bool has_digest = false;
  };
  Info info;
  std::vector<Entry> tensors;  ///< in name order
  bool sealed = false;         ///< false: a foreign file, made without seal
};

/// Reads everything but the tensors' values. By one rank. Sizes are checked against the file before
/// anything is allocated; links out of the file, virtual and external storage are refused. Throws
/// InputError naming the file and the place.
Contents read_contents(const std::string& path);
/// The same on every rank, by one read of rank 0. Collective.
Contents read_contents(const comm::Communicator& world, const std::string& path);

/// What of a sealed file is read; head: the seal itself, whether it is whole and belongs to a file
/// of this size.
enum class SealCheck : std::uint8_t { every_byte, head };

/// Checks the seal over every byte, before HDF5 sees the file. Returns "" when whole, "no seal" for
/// a foreign file, else what is wrong and where (byte offset). A foreign file is looked over by a
/// process of its own (io/hdf5_probe.hpp): throws InputError where that fails. By one rank.
std::string check_seal(const std::string& path, SealCheck check = SealCheck::every_byte);

/// Reads the pieces named (each rank its own rows; a piece with no rows is passed over; ranks may
/// name different tensors) and checks digests where the file has them: those of the values that
/// arrived in memory, where all ranks together hold each element of a tensor equally often, else
/// those of the file's values in a second pass shared out over the ranks. Collective. Throws
/// InputError naming tensor and file: missing, other shape, digest wrong, a value that is not
/// finite.
void read(const comm::Communicator& world, const std::string& path,
          std::span<const TensorSlice> slices);

/// One digest over names and digests of all tensors: sum over tensors of mix64(digest ^
/// random_key(0, path)), for `inspect --digest`.
std::uint64_t combined_digest(const std::vector<Contents::Entry>& tensors);

/// What local rows [row_begin, row_end) of a part add to a tensor's digest: elements are numbered
/// by their place in the whole tensor in file order (docs/contract section 5), so that the sum over
/// parts that cover the tensor once is its digest.
std::uint64_t digest_rows(const parallel::ParameterSpec& spec,
                          const parallel::TensorPartition& partition, std::int64_t row_begin,
                          std::int64_t row_end, const float* rows);

}  // namespace trireme::checkpoint
