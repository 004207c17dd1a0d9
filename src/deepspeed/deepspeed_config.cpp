#include <lockstep/deepspeed_config.h>

#include "config/hjson_source.h"

namespace lockstep {

DeepSpeedConfig DeepSpeedConfig::from_file(const std::filesystem::path& path) {
  const config::HjsonSource source = config::read_hjson_file(path);
  return from_text(source.text, source.name);
}

DeepSpeedConfig DeepSpeedConfig::from_argument(const std::string& path_or_base64) {
  const config::HjsonSource source = config::read_hjson_argument(path_or_base64);
  return from_text(source.text, source.name);
}

}  // namespace lockstep
