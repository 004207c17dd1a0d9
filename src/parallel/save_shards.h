#pragma once

#include <lockstep/communicator.h>

#include "checkpoint/store.h"

namespace lockstep::parallel {

// Saves one checkpoint of all ranks. Each rank writes its pieces to a file of its own in the folder
// that rank 0 creates, which must be on a shared file system; rank 0 publishes the folder with its
// metadata. `store` is rank 0's, null elsewhere; the returned entry is valid on rank 0 only. `files`:
// writes this rank's file. Collective. CheckpointError on all ranks: one of them failed, and which;
// nothing is published then.
checkpoint::Entry save_shards(const Communicator& group, checkpoint::Store* store,
                              const checkpoint::Snapshot& snapshot,
                              checkpoint::FileSystem& files = checkpoint::real_files());

}  // namespace lockstep::parallel
