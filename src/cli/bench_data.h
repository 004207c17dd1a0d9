#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep bench data`: how many images a second come out of a loader, by threads: with
// CIFAR's augmentation, with ImageNet's resize and crop, or of a set of the user's own.
// Sets *status when it ran.
void add_bench_data(CLI::App& bench, int* status);

}  // namespace lockstep::cli
