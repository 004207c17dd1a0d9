#include "train/autocast.h"

#include <ATen/autocast_mode.h>

namespace lockstep::train {

Autocast::Autocast(const std::string& precision, c10::DeviceType device)
    : active_(precision != "fp32"), device_(device) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  at::autocast::set_autocast_dtype(device, precision == "bf16" ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  // Copies of weights in the short format are good for one forward only.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

}  // namespace lockstep::train
