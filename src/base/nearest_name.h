#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

// The name that somebody who wrote `given` most likely meant, by the letters that would
// have to change; nullopt where none is near. Of equally near ones the first.
std::optional<std::string> nearest_name(std::string_view given, const std::vector<std::string>& names);

}  // namespace lockstep::base
