#include <lockstep/config.h>
#include <lockstep/deepspeed.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>

namespace lockstep {

ProgramOptions& add_config_arguments(ProgramOptions& options, DeepSpeedArguments& arguments) {
  return options.add("deepspeed", arguments.deepspeed, "flag of DeepSpeed's programs, without effect")
      .add("deepspeed_config", arguments.deepspeed_config, "DeepSpeed's configuration file")
      .add("local_rank", arguments.local_rank, "flag of DeepSpeed's launcher: checked, but not needed",
           {.minimum = -1, .has_variable = false});
}

DeepSpeedConfig DeepSpeedArguments::config(const World& world) const {
  if (local_rank >= 0 && local_rank != world.local_rank()) {
    throw ConfigError("deepspeed", "--local_rank is not the rank that this process was started as");
  }
  if (deepspeed_config.empty()) {
    throw ConfigError("deepspeed", "there is no configuration: give --deepspeed_config a file");
  }
  return DeepSpeedConfig::from_argument(deepspeed_config);
}

}  // namespace lockstep
