#include "recipes/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/trainer.h>

#include <filesystem>
#include <vector>

#include "base/log.h"
#include "base/nearest_name.h"
#include "report/report.h"

namespace lockstep::recipes {
namespace {

constexpr Recipe kRecipes[] = {
    {"sine", "sin(2 pi x) with a small network", sine_defaults, run_sine, sine_model},
    {"mnist", "handwritten digits with Princeton's convolutional network", mnist_defaults, run_mnist,
     mnist_model},
    {"fashion-mnist", "pieces of clothing with the same network", mnist_defaults, run_fashion_mnist,
     mnist_model},
    {"cifar100", "small pictures of 100 kinds with Sigma2's Wide ResNet", cifar100_defaults, run_cifar100,
     cifar100_model},
    {"vit", "pictures of an HDF5 file with LUMI's vision transformer", vit_defaults, run_vit, vit_model},
};

}  // namespace

std::span<const Recipe> all_recipes() { return kRecipes; }

void require_no_size(const std::string& recipe, const std::string& size) {
  if (size.empty()) return;
  throw ConfigError(
      "train", fmt::format("the recipe {} has one model, without sizes: leave out --model {}", recipe, size));
}

const Recipe& find_recipe(const std::string& name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : kRecipes) {
    if (name == recipe.name) return recipe;
    names.emplace_back(recipe.name);
  }
  const auto nearest = base::nearest_name(name, names);
  throw ConfigError("train", fmt::format("unknown recipe '{}'{}; there are {}", name,
                                         nearest ? fmt::format("; did you mean '{}'?", *nearest) : "",
                                         fmt::join(names, ", ")));
}

void write_run_report(Trainer& trainer) {
  if (!trainer.world().is_main()) return;
  const std::filesystem::path folder = trainer.run_folder();
  try {
    report::write_report({folder}, folder / "report.html");
    if (trainer.config().verbose) trainer.print("Report: " + (folder / "report.html").string());
  } catch (const std::exception& error) {
    // The training is done and its metrics are there: `lockstep report` can be run again.
    base::log_warning("train", "the report was not written: {}", error.what());
  }
}

}  // namespace lockstep::recipes
