#pragma once

#include <functional>
#include <optional>
#include <string>

#include "interop/state_dict.h"

namespace lockstep::interop {

// The text of a record of the archive, or nullopt where there is none of this name.
using ReadRecord = std::function<std::optional<std::string>(const std::string& name)>;

// The tensors of the module in a TorchScript archive, under the names of its state dict:
// first all parameters, then all buffers. `root` is the archive's data.pkl, read with
// UnknownNames::kKeep.
//
// No code of the archive is executed: of its source only the lists of parameters and
// buffers are read. PickleError: the archive holds no module, or a module whose state only
// its own code can read (__setstate__).
TensorReferences find_script_tensors(ValueRef root, const ReadRecord& read);

}  // namespace lockstep::interop
