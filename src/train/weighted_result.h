#pragma once

#include <lockstep/loss.h>

namespace lockstep::train {

// total += part * weight, over the loss and all metrics.
void add_weighted(LossResult& total, const LossResult& part, double weight);

}  // namespace lockstep::train
