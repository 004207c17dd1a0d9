#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>

namespace lockstep {
namespace {

c10::ScalarType dtype_of(const std::string& precision) {
  if (precision == "fp32") return at::kFloat;
  if (precision == "bf16") return at::kBFloat16;
  if (precision == "fp16") return at::kHalf;
  throw ConfigError("optim",
                    fmt::format("the precision of Autocast must be fp32, bf16 or fp16: '{}'", precision));
}

}  // namespace

Autocast::Autocast(const std::string& precision, c10::DeviceType device)
    : Autocast(dtype_of(precision), device) {}

Autocast::Autocast(c10::ScalarType dtype, c10::DeviceType device)
    : active_(dtype != at::kFloat), device_(device) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  dtype_before_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  // 16-bit copies of weights are valid for one forward only.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace lockstep
