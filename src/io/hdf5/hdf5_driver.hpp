// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hdf5_detail.hpp"

#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::io::detail {

/// Opens a file for reading through a file driver of our own, without file locks. The caller holds
/// Hdf5Lock. Throws InputError; the message does not name the path.
Hdf5Handle open_to_scan(const std::string& path);

/// Forgets a failure of the disk while another file was read.
void forget_disk_failure();
/// Throws Failure if the disk failed since forget_disk_failure() while a file of open_to_scan() was
/// read: errors of HDF5 are then no fault of the file. The message names the path.
void check_disk();

/// Returns the place of a chunk of a dataset in a file of open_to_scan(), including the user block.
/// `first`: its first element. The offset is -1 if the chunk was never written, or its place cannot
/// be found.
///
/// H5Dget_chunk_info() of HDF5 before 1.14 visits all chunks in front of the one that is asked for:
/// two minutes for 65,536 chunks. H5Dchunk_iter() is missing before 1.12.3. So this function reads
/// the chunk, which looks it up in the tree, and the driver notes the place and reads nothing.
Hdf5Chunk find_chunk(hid_t dataset, const hsize_t* first);

}  // namespace trireme::io::detail
