#pragma once

#include <lockstep/json.h>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/run.h"

namespace lockstep::report {

// A page of charts with something before and after them.
struct Page {
  std::string title;
  std::string subtitle;
  std::string before;  // HTML
  std::vector<Chart> charts;
  std::vector<Run> runs;  // what the charts' steps are as epochs and hours; may be empty
  std::string after;      // HTML
};

// The whole page: style, script and data are in it, and it may load nothing (its content
// policy forbids it). Light and dark, narrow and wide, and for print.
std::string render_page(const Page& page);

// <section> with a heading.
std::string section(const std::string& title, const std::string& html);
// A dot in the colour of a run or a line.
std::string colour_dot(size_t colour);

}  // namespace lockstep::report
