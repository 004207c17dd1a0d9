#pragma once

#include <string>
#include <utility>
#include <vector>

#include "interop/pickle_value.h"

namespace lockstep::interop {

using TensorReferences = std::vector<std::pair<std::string, const TensorReference*>>;

// The state dict in what torch.save was given: a dict of tensors, or one that is kept in
// a dict as "model", "state_dict", "model_state_dict" or "module" beside an optimizer
// and counters, or in a tuple beside them. Entries that are no tensors are left out.
// PickleError says what was found instead.
TensorReferences find_state_dict(ValueRef root);

}  // namespace lockstep::interop
