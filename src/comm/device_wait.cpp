#include "comm/device_wait.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::comm {

void wait_for_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace lockstep::comm
