#include <lockstep/deepspeed_config.h>

#include <lockstep/json.h>

#include "config/hjson_source.h"
#include "deepspeed/key.h"
#include "deepspeed/reader.h"

namespace lockstep {
namespace {

// Defaults that depend on other keys.
void settle(DeepSpeedConfig& config) {
  // torch's AdamW has a weight decay of its own.
  DeepSpeedConfig::Optimizer& optimizer = config.optimizer;
  const bool is_torch_adamw = optimizer.torch_adam && optimizer.decouples_weight_decay();
  if (is_torch_adamw && config.places.count("optimizer.params.weight_decay") == 0)
    optimizer.weight_decay = 0.01;
  if (config.flops_profiler.enabled) config.wall_clock_breakdown = true;
}

bool is_printed(const deepspeed::Key& key, const DeepSpeedConfig& config) {
  if (!key.write) return false;
  if (key.path.starts_with("optimizer.")) {
    return config.optimizer.exists() && (key.types & deepspeed::type_bit(config.optimizer.type)) != 0;
  }
  if (key.path.starts_with("scheduler.")) {
    return config.scheduler.exists() && (key.types & deepspeed::type_bit(config.scheduler.type)) != 0;
  }
  return true;
}

}  // namespace

DeepSpeedConfig DeepSpeedConfig::from_file(const std::filesystem::path& path) {
  const config::HjsonSource source = config::read_hjson_file(path);
  return from_text(source.text, source.name);
}

DeepSpeedConfig DeepSpeedConfig::from_text(std::string_view text, std::string_view name) {
  DeepSpeedConfig config = deepspeed::read_document(config::parse_hjson(text, name), name);
  settle(config);
  config.validate();
  return config;
}

DeepSpeedConfig DeepSpeedConfig::from_argument(const std::string& path_or_base64) {
  const config::HjsonSource source = config::read_hjson_argument(path_or_base64);
  return from_text(source.text, source.name);
}

Json DeepSpeedConfig::to_json() const {
  Json result = Json::object();
  for (const deepspeed::Key& key : deepspeed::all_keys()) {
    if (!is_printed(key, *this)) continue;
    Json* place = &result;
    for (size_t begin = 0, dot = 0; dot != std::string::npos; begin = dot + 1) {
      dot = key.path.find('.', begin);
      place = &(*place)[key.path.substr(begin, dot - begin)];
    }
    *place = key.write(*this);
  }
  return result;
}

}  // namespace lockstep
