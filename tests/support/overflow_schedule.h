#pragma once

#include <lockstep/deepspeed.h>

#include <functional>
#include <string>
#include <vector>

#include "support/block_net.h"

namespace lockstep::test {

// Copies of an engine's parameters, whole at every stage. Collective.
template <typename M>
std::vector<at::Tensor> parameters_of(Engine<M>& engine) {
  const auto scope = engine.gather_parameters();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : engine->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

// The section of a configuration that the schedule is for.
inline const std::string kOverflowSchedule =
    "fp16: {enabled: true, initial_scale_power: 4, loss_scale_window: 2, hysteresis: 2}";

// Overflows of the last rank only, and what DeepSpeed's scale makes of them: with hysteresis 2
// the first is forgiven, the next halve; the third calm step in a row doubles, with a window
// of 2. All ranks skip the step, which changes no weight. `batch_of`: this rank's at a step,
// in float16. Collective.
void expect_overflow_schedule(Engine<BlockNetImpl>& engine,
                              const std::function<at::Tensor(int step)>& batch_of);

}  // namespace lockstep::test
