#pragma once

#include <c10/core/Device.h>

namespace lockstep::comm {

// Until the device has done all that it was given; at once for the CPU.
void wait_for_device(c10::Device device);

}  // namespace lockstep::comm
