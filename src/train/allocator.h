#pragma once

namespace lockstep::train {

// A training step frees what the next one allocates again. Tells the C library to
// keep such memory instead of giving it back to the kernel, which would hand it out
// anew page by page: 6 % of a step of a small CNN. Blocks of over 32 MiB go back as
// before. Does nothing where GLIBC_TUNABLES or MALLOC_* variables set the same.
void keep_freed_memory();

}  // namespace lockstep::train
