#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::base {

// The decimal integer that the whole text is, or nullopt: no spaces, no plus sign,
// nothing after it, nothing that int64_t cannot hold.
std::optional<int64_t> parse_integer(std::string_view text);

}  // namespace lockstep::base
