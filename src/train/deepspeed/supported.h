#pragma once

#include <lockstep/deepspeed_config.h>

#include <span>

namespace lockstep::deepspeed {

// A key that can be read but that nothing acts on, or that somebody does not act on.
struct Unsupported {
  const char* key;                           // "zero_optimization.offload_param.device"
  bool (*is_asked)(const DeepSpeedConfig&);  // its value, or its section, would change something
  const char* reason;                        // and what to do
};

// ConfigError "[deepspeed] ds.json:3:5: KEY: reason" for the first of them that is asked for.
void refuse(const DeepSpeedConfig& config, std::span<const Unsupported> keys);

// Refuses what no part of the library does. Who trains by a configuration calls it first, and
// refuse() with what it does not do itself.
void require_supported(const DeepSpeedConfig& config);
std::span<const Unsupported> unsupported_keys();

}  // namespace lockstep::deepspeed
