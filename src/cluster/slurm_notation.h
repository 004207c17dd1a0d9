#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The notations in which Slurm writes hosts, counts and times.
namespace lockstep::cluster {

// More hosts than any cluster has; a list that names more is a mistake or an attack.
inline constexpr int kMaxHosts = 256 * 1024;

// The hosts of a Slurm node list, in its order, duplicates kept.
//
//   list  = item {"," item}
//   item  = text and groups in any number and order, at least one of them
//   group = "[" range {"," range} "]"
//   range = number | number "-" number
//
// The digits of a range's first number fix the least width ("n[008-011]"). Several
// groups multiply, the left one slowest: "r[0-1]b[1-2]" is r0b1 r0b2 r1b1 r1b2.
//
// `source` names the origin of the text. ConfigError shows it, the text and the
// column (from 1) of the first mistake.
std::vector<std::string> expand_node_list(std::string_view text, std::string_view source);

// One count per node from Slurm's "2(x3),1" notation: 2 2 2 1. Counts and
// repetitions are at least 1. ConfigError as above.
std::vector<int> expand_counts(std::string_view text, std::string_view source);

// A time limit: "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours",
// "days-hours:minutes" or "days-hours:minutes:seconds". nullopt: any other text, zero, or
// more than ten years. A part may exceed its clock range ("90:00" is 90 minutes).
std::optional<std::chrono::seconds> parse_time_limit(std::string_view text);

}  // namespace lockstep::cluster
