#pragma once

#include <string>

namespace lockstep::recipes {

// The functions of the table in recipe.cpp; each recipe is a source of its own.

std::string sine_defaults();
int run_sine(int argc, const char* const* argv);

std::string mnist_defaults();
int run_mnist(int argc, const char* const* argv);
int run_fashion_mnist(int argc, const char* const* argv);

std::string cifar100_defaults();
int run_cifar100(int argc, const char* const* argv);

std::string vit_defaults();
int run_vit(int argc, const char* const* argv);

}  // namespace lockstep::recipes
