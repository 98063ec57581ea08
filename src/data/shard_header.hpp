#pragma once

#include "trireme/data/shard.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::data {

/// What an open file says of itself; see describe_shard().
ShardDescription read_header(const io::Hdf5File& file);

}  // namespace trireme::data
