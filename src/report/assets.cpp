#include "report/assets.h"

// Made by assets.S.
extern "C" {
extern const char lockstep_chart_js_begin[];
extern const char lockstep_chart_js_end[];
extern const char lockstep_page_script_begin[];
extern const char lockstep_page_script_end[];
extern const char lockstep_page_style_begin[];
extern const char lockstep_page_style_end[];
}

namespace lockstep::report {

std::string_view chart_js() { return {lockstep_chart_js_begin, lockstep_chart_js_end}; }
std::string_view page_script() { return {lockstep_page_script_begin, lockstep_page_script_end}; }
std::string_view page_style() { return {lockstep_page_style_begin, lockstep_page_style_end}; }

}  // namespace lockstep::report
