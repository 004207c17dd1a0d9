#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace lockstep::train {

// The states of this process's default generators, of the CPU and of the device, as
// bytes; and back.
std::string random_state(c10::Device device);
void set_random_state(const std::string& state, c10::Device device);

// Seeds the streams of a rank at a step: for a training that goes on with another number
// of ranks. Depends on its arguments alone.
void seed_stream(uint64_t seed, int64_t step, int rank);

}  // namespace lockstep::train
