#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/flat_kernels.h"

namespace lockstep::optim {

// LAMB on flat memory, which may hold only a part of each parameter. A step has two passes; between them
// the sums of a parameter are added over all ranks that hold a part of it.
//
//   sums = lamb_sums(rule, memory, segments);          // moves the averages
//   ... all-reduce the sums, added ...
//   lamb_apply(rule, memory, segments, ratios);        // of lamb_trust_ratio
struct LambRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  double max_coeff = 10;
  double min_coeff = 0.01;
  int64_t step = 1;  // of this step; the first is 1
};

struct LambSums {
  double parameter_squares = 0;
  double update_squares = 0;
};

// The multiplier of the update, before the trust ratio: the learning rate, bias corrected.
double lamb_step_size(const LambRule& rule);

// Adds the gradients to the averages (state, second_state) of the segments, one for each parameter, and
// returns the sums of each segment. Parameters are unchanged.
std::vector<LambSums> lamb_sums(const LambRule& rule, const FlatMemory& memory,
                                const std::vector<FlatSegment>& segments);

// |parameter| / |update| within its bounds; 1 where one of them is 0.
double lamb_trust_ratio(const LambRule& rule, const LambSums& sums);

// Updates the parameters of the segments, each with its ratio, and writes the copy if there is one. Does
// not read the gradients.
void lamb_apply(const LambRule& rule, const FlatMemory& memory, const std::vector<FlatSegment>& segments,
                const std::vector<double>& ratios);

}  // namespace lockstep::optim
