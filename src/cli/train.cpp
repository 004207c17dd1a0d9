#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <string>
#include <vector>

#include "base/nearest_name.h"
#include "cli/commands.h"
#include "recipes/recipe.h"

namespace lockstep::cli {
namespace {

[[noreturn]] void list_recipes() {
  std::vector<std::pair<std::string, std::string>> names;
  std::string text = "Trains a model by a recipe.\n\n  lockstep train RECIPE [flags]\n\n";
  for (const recipes::Recipe& recipe : recipes::all_recipes()) {
    names.emplace_back(recipe.name, recipe.description);
    text += fmt::format("  {:<15}{}\n  {:<15}{}\n", recipe.name, recipe.description, "", recipe.defaults());
  }
  text += fmt::format("  {:<15}{}\n  {:<15}{}\n", "MODEL.pt2",
                      "a model that Python saved with torch.export.save, on your data", "",
                      recipes::exported_defaults());
  text +=
      "\nEvery recipe takes --data PATH|synthetic, --epochs, --batch-size, --max-batches, --precision,\n"
      "--nprocs, --backend, --seed, --run-dir, --resume, --config FILE and the other flags of a trainer.\n"
      "lockstep train RECIPE --help lists them.\n";
  throw SubcommandsHelp(text, std::move(names));
}

// ConfigError lists the recipes and suggests the one with the nearest name.
const recipes::Recipe& recipe_named(const std::string& name) {
  if (const recipes::Recipe* recipe = recipes::find_recipe(name)) return *recipe;
  std::vector<std::string> names;
  for (const recipes::Recipe& recipe : recipes::all_recipes()) names.emplace_back(recipe.name);
  const auto nearest = base::nearest_name(name, names);
  throw ConfigError("train", fmt::format("unknown recipe '{}'{}; there are {}", name,
                                         nearest ? fmt::format("; did you mean '{}'?", *nearest) : "",
                                         fmt::join(names, ", ")));
}

}  // namespace

// Without a recipe it lists them.
int run_train(int argc, const char* const* argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") list_recipes();
  if (recipes::is_exported_model(name)) {
    const std::string command = fmt::format("lockstep train {}", name);
    std::vector<const char*> arguments(argv + 1, argv + argc);
    arguments.front() = command.c_str();
    return recipes::run_exported(name, static_cast<int>(arguments.size()), arguments.data());
  }
  const recipes::Recipe& recipe = recipe_named(name);
  const std::string command = fmt::format("lockstep train {}", recipe.name);
  std::vector<const char*> arguments(argv + 1, argv + argc);
  arguments.front() = command.c_str();
  return recipe.run(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace lockstep::cli
