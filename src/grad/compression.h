#pragma once

#include <lockstep/data_parallel.h>

namespace lockstep::grad {

// A hook that reduces buckets in a smaller dtype, with the arithmetic of PyTorch's
// fp16_compress_hook: cast, divide by the world size, sum, cast back. Buckets that
// are no wider than the dtype are reduced as they are. Empty for kNone.
GradientHook make_compression_hook(GradientCompression compression);

}  // namespace lockstep::grad
