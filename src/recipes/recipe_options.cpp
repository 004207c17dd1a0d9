#include "recipes/recipe_options.h"

#include "train/train_options.h"

namespace lockstep::recipes {

void parse_options(const std::string& description, const config::OptionTable& own, TrainConfig& config,
                   int argc, const char* const* argv, const std::set<std::string>& instead_of) {
  config::OptionTable table(description);
  table.add_config_file().add_all(own).add_all(train::options_of(config), instead_of);
  table.parse(argc, argv);
  const nlohmann::json values = own.to_json();
  for (const auto& [name, value] : values.items()) {
    if (!value.is_null()) config.hyperparams.emplace(name, config::free_value_of(value));
  }
}

}  // namespace lockstep::recipes
