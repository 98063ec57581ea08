// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/io/new_folders.hpp"
#include "trireme/monitor/run_folder.hpp"

namespace trireme::train {

/// The run folder, locked for this start. Until keep() is called, folders that this start created
/// are removed at its end if they are empty.
struct HeldRunFolder {
  /// On world rank 0. Declared before the lease: its destructor must find no file of the lease.
  io::NewFolders new_folders;
  checkpoint::Lease lease;
  bool is_new = false;      ///< Created by this start.
  bool is_starting = true;  ///< An input error removes a new folder.
  monitor::RunFolder::PreviousEnd previous_end;

  /// The start has succeeded.
  void keep() {
    is_starting = false;
    new_folders.keep();
  }
};

/// Throws InputError if run.folder is a folder of data, or has a name that is too long. Looks at
/// the file system of this rank and changes nothing.
void validate_run_folder_place(const deck::Deck& deck);

/// Acquires the lease on the run folder, which is created if it is missing. Rank 0 opens log.txt
/// and removes the previous exit record. Collective. Throws InputError if another job holds the
/// lease or the path cannot be a run folder.
HeldRunFolder acquire_run_folder(const deck::Deck& deck, const comm::Environment& environment,
                                 Log& log);

/// Creates and removes a file in the folder of checkpoints. Otherwise a run would notice only at
/// its first checkpoint that it cannot write one. Collective. Throws InputError if writing is not
/// permitted there, Failure if the disk is full or fails.
void check_writable(const comm::Communicator& world, const std::string& checkpoints);

/// Releases a folder that this start created, and removes the log if it holds nothing else, so that
/// the destructor of `folder` removes it. For starts that fail on wrong input. Acts on world rank 0
/// only.
void release_run_folder(HeldRunFolder& folder, const monitor::RunFolder& files);

}  // namespace trireme::train
