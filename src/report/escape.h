#pragma once

#include <lockstep/json.h>
#include <string>
#include <string_view>

namespace lockstep::report {

// Text for HTML and XML, between tags and inside quoted attributes: no character of it
// ends either. What is no UTF-8, and control characters, which XML forbids, become U+FFFD.
std::string escape_markup(std::string_view text);

// JSON for a <script> element: nothing in it ends the element or begins a comment.
std::string escape_script(const Json& value);

}  // namespace lockstep::report
