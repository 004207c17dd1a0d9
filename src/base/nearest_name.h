#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

// The name that is closest to the misspelt `given`, by edit distance; nullopt: none is close. Of equally
// close names the first one.
std::optional<std::string> nearest_name(std::string_view given, const std::vector<std::string>& names);

}  // namespace lockstep::base
