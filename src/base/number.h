#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::base {

// Parses a text that is one decimal integer. nullopt: it has spaces, a plus sign or other characters,
// or the number does not fit into int64_t.
std::optional<int64_t> parse_integer(std::string_view text);

// Formats a number of bytes: "512 B", "1.5 MiB".
std::string size_text(int64_t bytes);

}  // namespace lockstep::base
