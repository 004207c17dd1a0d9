#include "report/page.h"

#include <fmt/format.h>
#include <lockstep/version.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "report/escape.h"

// Defined by assets.S.
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

namespace {

constexpr size_t kColours = 8;  // in page/report.css

// More digits are not visible, and the page has a third of the size.
double shortened(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

Json numbers_of(const std::vector<Point>& points, double Point::*field) {
  Json numbers = Json::array();
  for (const Point& point : points) numbers.push_back(shortened(point.*field));
  return numbers;
}

// Seconds since the start of the run: six digits of seconds since 1970 would only resolve hours.
std::vector<Point> since_start(std::vector<Point> times) {
  const double start = times.empty() ? 0 : times.front().y;
  for (Point& point : times) point.y -= start;
  return times;
}

Json map_of(const std::vector<Point>& points) {
  return {numbers_of(points, &Point::x), numbers_of(points, &Point::y)};
}

const char* name_of(Chart::Kind kind) {
  return kind == Chart::Kind::kLines ? "lines" : kind == Chart::Kind::kStack ? "stack" : "bars";
}

const char* name_of(Chart::Axis axis) {
  switch (axis) {
    case Chart::Axis::kStep: return "step";
    case Chart::Axis::kSeconds: return "seconds";
    case Chart::Axis::kCategory: return "category";
    default: return "number";
  }
}

Json data_of(const Chart& chart) {
  Json series = Json::array();
  for (const Series& one : chart.series) {
    series.push_back({{"label", one.label},
                      {"run", one.run},
                      {"colour", one.colour % kColours},
                      {"dash", static_cast<int>(one.dash)},
                      {"thin", one.thin},
                      {"x", numbers_of(one.points, &Point::x)},
                      {"y", numbers_of(one.points, &Point::y)}});
  }
  return {{"id", chart.id},
          {"kind", name_of(chart.kind)},
          {"axis", name_of(chart.axis)},
          {"xLabel", chart.x_label},
          {"yLabel", chart.y_label},
          {"fromZero", chart.from_zero},
          {"marked", chart.has_points},
          {"categories", chart.categories},
          {"series", series}};
}

Json data_of(const Page& page) {
  Json charts = Json::array();
  for (const Chart& chart : page.charts) charts.push_back(data_of(chart));
  Json runs = Json::array();
  for (const Run& run : page.runs) {
    runs.push_back({{"epochs", map_of(epochs_of(run))}, {"times", map_of(since_start(run.times))}});
  }
  return {{"charts", charts}, {"runs", runs}};
}

// The y label, unless the title already says it: "Loss scale" of loss_scale.
std::string unit_of(const Chart& chart) {
  const bool same = std::equal(
      chart.title.begin(), chart.title.end(), chart.y_label.begin(), chart.y_label.end(), [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b)) ||
               (a == ' ' && b == '_');
      });
  return same ? "" : chart.y_label;
}

std::string card_of(const Chart& chart) {
  return fmt::format(
      "<figure class=\"card chart\" id=\"chart-{0}\"><figcaption><h3>{1}</h3><span class=\"unit\">{2}</span>"
      "<span class=\"tools\"></span></figcaption>"
      "<div class=\"canvas\"><canvas role=\"img\" aria-label=\"{1}\" data-chart=\"{0}\"></canvas></div>"
      "</figure>\n",
      escape_markup(chart.id), escape_markup(chart.title), escape_markup(unit_of(chart)));
}

std::string charts_of(const Page& page) {
  if (page.charts.empty()) return "";
  std::string cards;
  for (const Chart& chart : page.charts) cards += card_of(chart);
  return fmt::format(
      "<section id=\"charts\"><div class=\"heading\"><h2>Charts</h2><div id=\"axis\" class=\"switch\" "
      "role=\"group\" aria-label=\"horizontal axis\"></div></div>\n"
      "<noscript><p class=\"remarks\">The charts need JavaScript. <code>lockstep report --svg DIR</code> "
      "draws "
      "them without.</p></noscript>\n<div class=\"charts\">\n{}</div></section>\n",
      cards);
}

constexpr std::string_view kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:";
// Of a page that asks its own server for newer versions.
constexpr std::string_view kFollowPolicy = "; connect-src 'self'";
constexpr std::string_view kHeadEnd =
    "\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n";

constexpr std::string_view kMark =
    "<svg class=\"mark\" viewBox=\"0 0 32 32\" aria-hidden=\"true\"><path d=\"M3 25 L10 12 L15 18 L20 7\"/>"
    "<path d=\"M12 25 L19 12 L24 18 L29 7\"/></svg>";

}  // namespace

std::string section(const std::string& title, const std::string& html) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", escape_markup(title), html);
}

std::string colour_dot(size_t colour) {
  return fmt::format("<span class=\"dot\" style=\"background:var(--c{})\"></span>", colour % kColours);
}

std::string render_page(const Page& page) {
  const bool follows = !page.version.empty();
  std::string html(kHead);
  if (follows) html += kFollowPolicy;
  html += kHeadEnd;
  html += fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n", escape_markup(page.title),
                      page_style());
  html += fmt::format(
      "<header>{}<div><h1>{}</h1><p class=\"subtitle\">{}</p></div>{}"
      "<button id=\"theme\" type=\"button\" aria-label=\"light or dark\" hidden></button></header>\n<main>\n",
      kMark, escape_markup(page.title), escape_markup(page.subtitle),
      follows ? fmt::format("<span id=\"live\" class=\"live\" data-version=\"{}\">live</span>",
                            escape_markup(page.version))
              : "");
  html += page.before;
  html += charts_of(page);
  html += page.after;
  html += fmt::format("</main>\n<footer>Made by Lockstep {}. Charts: Chart.js, MIT licence.</footer>\n",
                      kVersion);
  html += fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n",
                      escape_script(data_of(page)));
  html += fmt::format("<script>{}</script>\n<script>\n{}</script>\n</body>\n</html>\n", chart_js(),
                      page_script());
  return html;
}

}  // namespace lockstep::report
