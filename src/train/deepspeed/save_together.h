#pragma once

#include <lockstep/communicator.h>

#include "checkpoint/store.h"

namespace lockstep::deepspeed {

// One checkpoint of all ranks: each writes its pieces as a file of its own into the folder
// that rank 0 made, which must be on a file system that all share; rank 0 publishes it with
// its metadata. Collective. CheckpointError on all ranks: one of them failed, and which;
// nothing is published then. `store` is rank 0's, null elsewhere; its entry is rank 0's,
// too. `files`: by which this rank writes its own file.
checkpoint::Entry save_together(const Communicator& group, checkpoint::Store* store,
                                const checkpoint::Snapshot& snapshot,
                                checkpoint::FileSystem& files = checkpoint::real_files());

}  // namespace lockstep::deepspeed
