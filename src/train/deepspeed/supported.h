#pragma once

#include <lockstep/deepspeed_config.h>

#include <span>

namespace lockstep::deepspeed {

// A key that is valid but that the library, or one of its users, does not act on.
struct Unsupported {
  const char* key;                           // "zero_optimization.offload_param.device"
  bool (*is_asked)(const DeepSpeedConfig&);  // whether its value, or its section, would change something
  const char* reason;                        // with what to do
};

// ConfigError "[deepspeed] ds.json:3:5: KEY: reason" for the first key that is asked for.
void refuse(const DeepSpeedConfig& config, std::span<const Unsupported> keys);

// Refuses the keys that no part of the library acts on. Code that trains by a configuration calls it
// first, and then refuse() with the keys that it does not act on itself.
void require_supported(const DeepSpeedConfig& config);
std::span<const Unsupported> unsupported_keys();

}  // namespace lockstep::deepspeed
