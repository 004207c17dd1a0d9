#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace lockstep::cluster {

// A time limit in Slurm's words: "minutes", "minutes:seconds",
// "hours:minutes:seconds", "days-hours", "days-hours:minutes" or
// "days-hours:minutes:seconds". nullopt: none of these, nothing at all ("0"), or more
// than ten years. A part may be larger than its clock allows ("90:00" is 90 minutes).
std::optional<std::chrono::seconds> parse_time_limit(std::string_view text);

}  // namespace lockstep::cluster
