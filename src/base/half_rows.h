#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::base {

// Rows of `numel` float16 bits to float32 and back, with the CPU's own conversion where it has
// one. The results are those of narrow_float.h.
void widen_halves(const uint16_t* from, float* to, size_t numel);
void narrow_to_halves(const float* from, uint16_t* to, size_t numel);

}  // namespace lockstep::base
