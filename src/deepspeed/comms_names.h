#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::deepspeed {

// The operation of a Communicator that comms_logger.prof_ops names: DeepSpeed's names, which
// are PyTorch's, and ours. Nothing for a name that is none.
std::optional<std::string_view> operation_of(std::string_view name);
std::vector<std::string> operation_names();

}  // namespace lockstep::deepspeed
