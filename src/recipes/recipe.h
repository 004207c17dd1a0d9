#pragma once

#include <lockstep/model.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::recipes {

// What a recipe trains, without its data.
struct RecipeModel {
  Model model;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<int64_t> sample_shape;  // of one input
  bool is_integer = false;            // inputs are integers, such as tokens
  int64_t batch_size = 0;             // a rank's, as long as the batch of all ranks is not fixed
  int64_t global_batch_size = 0;      // or that of all ranks
};

// A whole training that `lockstep train NAME` runs: data, model, optimizer, printed lines.
struct Recipe {
  const char* name;
  const char* description;
  // The most important flags with their default values.
  std::string (*defaults)();
  // Reads the flags, joins or starts the ranks, trains, and returns the exit status.
  // argv[0] is the command as the user wrote it. Throws ConfigError and HelpRequested.
  int (*run)(int argc, const char* const* argv);
  // `size`: the value of the flag --model; empty: the default. ConfigError: no model has this size.
  RecipeModel (*model)(const std::string& size);
};

// In the order in which they are listed.
std::span<const Recipe> all_recipes();

// nullptr: there is no recipe of this name.
const Recipe* find_recipe(std::string_view name);

// The functions of the table in recipe.cpp; each recipe is a source of its own.

std::string sine_defaults();
RecipeModel sine_model(const std::string& size);
int run_sine(int argc, const char* const* argv);

std::string mnist_defaults();
RecipeModel mnist_model(const std::string& size);
int run_mnist(int argc, const char* const* argv);
int run_fashion_mnist(int argc, const char* const* argv);

std::string cifar100_defaults();
RecipeModel cifar100_model(const std::string& size);
int run_cifar100(int argc, const char* const* argv);

std::string vit_defaults();
RecipeModel vit_model(const std::string& size);
int run_vit(int argc, const char* const* argv);

std::string gpt_defaults();
RecipeModel gpt_model(const std::string& size);
int run_gpt(int argc, const char* const* argv);

// `lockstep train MODEL.pt2`: a model that Python exported, instead of a recipe's.
bool is_exported_model(std::string_view name);
std::string exported_defaults();
int run_exported(const std::string& file, int argc, const char* const* argv);

// ConfigError: the recipe has one model, and its flag --model was given.
void require_no_size(const std::string& recipe, const std::string& size);

}  // namespace lockstep::recipes
