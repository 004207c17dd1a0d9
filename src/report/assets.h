#pragma once

#include <string_view>

namespace lockstep::report {

// Files that are part of the program, so that a report needs nothing beside it.
std::string_view chart_js();     // Chart.js, with its licence in its first lines
std::string_view page_script();  // page/report.js
std::string_view page_style();   // page/report.css

}  // namespace lockstep::report
