#include "engine/autocast.h"

#include <ATen/autocast_mode.h>

namespace lockstep::engine {

Autocast::Autocast(const std::string& precision, c10::DeviceType device)
    : Autocast(precision == "fp32"   ? at::kFloat
               : precision == "bf16" ? at::kBFloat16
                                     : at::kHalf,
               device) {}

Autocast::Autocast(c10::ScalarType dtype, c10::DeviceType device)
    : active_(dtype != at::kFloat), device_(device) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  // Copies of weights in the short format are good for one forward only.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

}  // namespace lockstep::engine
