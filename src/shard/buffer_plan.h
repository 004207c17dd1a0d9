#pragma once

#include <lockstep/sharded_model.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/model_layout.h"

namespace lockstep::shard {

// Bytes that a rank lends to gradients (from stage 2 on) and to parameters (stage 3) in its
// first steps, and keeps: by the rules that lend them in a training, with units that run in
// the order of their numbers and gradients that come in the reverse of registration.
//
// `parameters` are those of the layout; `parents` as UnitMap has them.
int64_t plan_buffers(const ModelLayout& layout, const std::vector<LayoutParameter>& parameters,
                     const std::vector<size_t>& parents, const ShardedOptions& options);

}  // namespace lockstep::shard
