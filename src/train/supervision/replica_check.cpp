// SPDX-License-Identifier: Apache-2.0
//
// Compares replicas by hashes of their weights, to detect silent data corruption. Called by
// RunSupervisor at the interval health.compare_replicas and before checkpoints and evaluations.
#include "replica_check.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "trireme/io/hash.hpp"

namespace trireme::train {
namespace {

constexpr std::size_t window_bytes =
    std::size_t{4}  // Device memory is copied to the host in blocks of this size.
    << 20;

/// Adds a flat tensor to a hash. Waits for each block copied from the device.
void add(io::Xxh3& hash, const Stream& stream, const Tensor& flat) {
  const auto bytes = static_cast<std::size_t>(flat.bytes());
  if (flat.device == DeviceKind::meta) return;
  if (in_host_memory(flat.device)) return hash.update(flat.data, bytes);
  std::vector<std::byte> window(std::min(bytes, window_bytes));
  for (std::size_t begin = 0; begin < bytes; begin += window.size()) {
    const std::size_t size = std::min(window.size(), bytes - begin);
    copy_bytes(stream, window.data(), static_cast<const std::byte*>(flat.data) + begin, size);
    hash.update(window.data(), size);
  }
}

}  // namespace

std::vector<std::uint64_t> replica_hashes(Replica& replica) {
  const parallel::Mesh& mesh = replica.mesh();
  const parallel::ParameterStore& store = replica.weight_update().store();
  if (mesh.shape.data == 1 || store.sharding().kind == parallel::ShardKind::parameters) return {};
  io::Xxh3 hash;
  const Stream& stream = replica.context().stream();
  synchronize(stream);  // Copies to offloaded weights in host memory may still be in flight.
  if (store.sharding().kind == parallel::ShardKind::none) add(hash, stream, store.flat_master());
  if (store.flat_working().defined()) add(hash, stream, store.flat_working());
  const std::uint64_t mine = hash.digest();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(mesh.world.size()));
  mesh.world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

std::vector<int> differing_ranks(const parallel::MeshShape& shape,
                                 const std::vector<std::uint64_t>& hashes) {
  std::vector<int> differing;
  for (int stage = 0; stage < shape.pipeline && !hashes.empty(); ++stage) {
    for (int tensor = 0; tensor < shape.tensor; ++tensor) {
      const auto of = [&](int data) {
        return hashes[static_cast<std::size_t>(parallel::rank_of(shape, {stage, data, tensor}))];
      };
      std::vector<std::uint64_t> place;
      for (int data = 0; data < shape.data; ++data) place.push_back(of(data));
      std::sort(place.begin(), place.end());
      // In sorted order a value held by more than half of the ranks is in the middle.
      const std::uint64_t median = place[place.size() / 2];
      const bool majority = 2 * std::count(place.begin(), place.end(), median) > shape.data;
      if (place.front() == place.back()) continue;
      for (int data = 0; data < shape.data; ++data) {
        if (!majority || of(data) != median)
          differing.push_back(parallel::rank_of(shape, {stage, data, tensor}));
      }
    }
  }
  std::sort(differing.begin(), differing.end());
  return differing;
}

}  // namespace trireme::train
