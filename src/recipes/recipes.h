#pragma once

#include <string>

#include "recipes/recipe.h"

namespace lockstep::recipes {

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

// ConfigError: the recipe has one model, and its flag --model was given.
void require_no_size(const std::string& recipe, const std::string& size);

}  // namespace lockstep::recipes
