#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "trireme/base/check.hpp"

namespace trireme::comm {

enum class Reduction : std::uint8_t { sum, max, min };

/// A group of ranks: a small value, copied freely. Forms: self (one rank, every call a no-op), MPI
/// on host memory, meta (a rank of a group that is not here: shapes only). Calls are collective
/// over the group and block; a failed one throws Failure.
class Communicator {
 public:
  /// The group of one rank.
  Communicator();
  /// Rank `rank` of a group of `size` that is not here: collectives do nothing but be counted.
  static Communicator meta(int rank, int size);

  int rank() const;
  int size() const;
  void barrier() const;
  void broadcast(std::span<std::byte> data, int root) const;
  /// The root's text, on every rank.
  std::string broadcast(const std::string& text, int root) const;
  /// all.size() == size() * mine.size(); parts in rank order.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const;
  void all_reduce(std::span<double> data, Reduction) const;
  void all_reduce(std::span<std::int64_t> data, Reduction) const;
  void all_reduce(std::span<std::uint64_t> data, Reduction) const;
  std::int64_t all_reduce(std::int64_t value, Reduction) const;
  void send(std::span<const std::byte> data, int to, int tag) const;
  void receive(std::span<std::byte> data, int from, int tag) const;
  /// The ranks that give the same colour, ordered by key; a negative colour stands alone.
  Communicator split(int color, int key) const;
  /// Meta: the bytes that this rank would have sent or contributed so far; 0 in the other forms.
  double meta_bytes() const;

  /// The MPI communicator behind it as a pointer to MPI_Comm (null for self and meta): for src/io's
  /// parallel HDF5 and src/comm only.
  const void* mpi_handle() const;
  struct Implementation;
  explicit Communicator(std::shared_ptr<Implementation> form);
  Implementation& implementation() const { return *implementation_; }

 private:
  std::shared_ptr<Implementation> implementation_;
};

/// Errors are agreed on before the next collective call: runs `body`; where it threw on any rank,
/// every rank of the group throws (its own error, or one that names the first rank that failed and
/// repeats its words, with its exit code).
template <class Body>
void together(const Communicator& group, Body&& body);
/// The non-template half of together(): collective; throws where any rank's message is not empty or
/// its code not `done`.
void agree(const Communicator& group, const std::string& message, ExitCode code);

template <class Body>
void together(const Communicator& group, Body&& body) {
  std::string message;
  ExitCode code = ExitCode::done;
  try {
    body();
  } catch (const Error& error) {
    message = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    message = error.what();
    code = ExitCode::failure;
  }
  agree(group, message, code);
}

}  // namespace trireme::comm
