#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::track {

// A field as RFC 4180 writes it: in quotes where it needs them.
std::string csv_field(std::string_view field);

// The fields of a line without its end.
std::vector<std::string> csv_fields(std::string_view line);

}  // namespace lockstep::track
