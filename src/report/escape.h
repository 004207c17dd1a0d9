#pragma once

#include <lockstep/json.h>

#include <string>
#include <string_view>

namespace lockstep::report {

// Text for HTML and XML, between tags and in quoted attributes: no character ends either. Bytes
// that are not UTF-8, and control characters, which XML forbids, become U+FFFD.
std::string escape_markup(std::string_view text);

// JSON for a <script> element: no character ends the element or begins a comment.
std::string escape_script(const Json& value);

}  // namespace lockstep::report
