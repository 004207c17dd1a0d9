#include "train/device.h"

#include <lockstep/error.h>

namespace lockstep::train {

c10::Device choose_device(const RankMap& map, const std::string& compute_setup) {
  if (compute_setup == "gpu") {
    throw ConfigError("launch", "compute_setup gpu needs the CUDA library: there is none in this build");
  }
  return c10::Device(c10::DeviceType::CPU);
}

}  // namespace lockstep::train
