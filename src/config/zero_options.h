#pragma once

#include <lockstep/zero.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::config {

// A rule that options of ZeRO break.
struct ZeroViolation {
  std::string option;    // the member of ZeroOptions at fault: "offload_optimizer.device"
  std::string sentence;  // what is wrong and what to change
  // DeepSpeed itself has no such rule: a file that breaks it can be read, but not trained with here.
  bool is_ours = false;
};

// Spells a member of ZeroOptions as the user knows it: "stage" is the flag zero_stage, and
// "offload_optimizer.device" is zero_offload_optimizer.
using SpellZeroOption = std::function<std::string(std::string_view option)>;

// The first rule that the options break; nothing: they are consistent. The only check of them: the
// trainer's configuration, ShardedModel and DeepSpeed's configuration throw what it returns.
std::optional<ZeroViolation> find_violation(const ZeroOptions& options, const SpellZeroOption& spell);

}  // namespace lockstep::config
