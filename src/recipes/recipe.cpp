#include "recipes/recipe.h"

#include <fmt/format.h>
#include <lockstep/error.h>

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
    {"gpt", "text or tokens with GPT-2, tiny to 1558M", gpt_defaults, run_gpt, gpt_model},
};

}  // namespace

std::span<const Recipe> all_recipes() { return kRecipes; }

void require_no_size(const std::string& recipe, const std::string& size) {
  if (size.empty()) return;
  throw ConfigError(
      "train", fmt::format("the recipe {} has one model, without sizes: leave out --model {}", recipe, size));
}

const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& recipe : kRecipes) {
    if (name == recipe.name) return &recipe;
  }
  return nullptr;
}

}  // namespace lockstep::recipes
