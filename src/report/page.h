#pragma once

#include <lockstep/json.h>

#include <string>
#include <string_view>
#include <vector>

#include "report/chart.h"
#include "report/run.h"

namespace lockstep::report {

// An HTML page of charts, with sections before and after them.
struct Page {
  std::string title;
  std::string subtitle;
  std::string before;  // HTML
  std::vector<Chart> charts;
  std::vector<Run> runs;  // convert the charts' steps to epochs and hours; may be empty
  std::string after;      // HTML
  // Of the files behind the page. If set, the page asks its server for newer versions: see follow.h.
  std::string version = {};
};

// The complete page with style, script and data. It loads no other file: its content security
// policy forbids that. It adapts to light and dark mode, narrow and wide windows, and print.
std::string render_page(const Page& page);

// A <section> with a heading.
std::string section(const std::string& title, const std::string& html);
// A dot in the colour of a run or a line.
std::string colour_dot(size_t colour);

// Files that assets.S links into the program.
std::string_view chart_js();     // Chart.js, with its licence in its first lines
std::string_view page_script();  // page/report.js
std::string_view page_style();   // page/report.css

}  // namespace lockstep::report
