#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpoint/pickle.h"

namespace lockstep::checkpoint {

// The named tensors in a parsed pickle.

// The state dict in the object that torch.save was given: a dict of tensors, or such a dict in a dict
// as "model", "state_dict", "model_state_dict" or "module" beside an optimizer and counters, or in a
// tuple. Values that are not tensors are skipped. PickleError: there is none; the text says what was
// found.
TensorReferences find_state_dict(ValueRef root);

// The text of a record of the archive; nullopt: no such record.
using ReadRecord = std::function<std::optional<std::string>(const std::string& name)>;

// The tensors of the module in a TorchScript archive, under the names of its state dict: first all
// parameters, then all buffers. `root` is the archive's data.pkl, parsed with UnknownNames::kKeep.
//
// Executes no code of the archive: reads only the lists of parameters and buffers in its source.
// PickleError: the archive has no module, or one whose state only its own code can restore
// (__setstate__).
TensorReferences find_script_tensors(ValueRef root, const ReadRecord& read);

}  // namespace lockstep::checkpoint
