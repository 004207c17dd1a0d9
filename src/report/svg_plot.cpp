#include "report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "report/escape.h"

namespace lockstep::report {
namespace {

double round_spacing(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1, 2, 5}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

// As many decimals as the spacing needs, the same for all ticks.
std::string label_of(double value, double spacing, double greatest) {
  if (greatest >= 1e7 || greatest < 1e-3) return fmt::format("{:.3g}", value);
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(spacing) + 1e-9)), 0, 12);
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

Ticks round_ticks(double low, double high, int count, bool is_tight) {
  if (!(high - low > std::fabs(high) * 1e-12)) {
    const double margin = high == 0 ? 1 : std::fabs(high) * 0.1;
    low -= margin;
    high += margin;
  }
  const double spacing = round_spacing(high - low, count);
  Ticks ticks{.low = low, .high = high, .at = {}, .labels = {}};
  if (!is_tight) {
    ticks.low = std::floor(low / spacing + 1e-9) * spacing;
    ticks.high = std::ceil(high / spacing - 1e-9) * spacing;
  }
  const double first = std::ceil(ticks.low / spacing - 1e-9);
  const double greatest = std::max(std::fabs(ticks.low), std::fabs(ticks.high));
  for (double i = 0; (first + i) * spacing <= ticks.high + spacing * 1e-9; ++i) {
    const double at = (first + i) * spacing;
    ticks.at.push_back(at);
    ticks.labels.push_back(label_of(at == 0 ? 0 : at, spacing, greatest));
  }
  return ticks;
}

namespace {

constexpr std::array<const char*, 8> kPalette = {"#2f5fe3", "#e4572e", "#12936b", "#8b46d8",
                                                 "#c98a00", "#1292b4", "#cf3f88", "#5d6b82"};
constexpr std::array<const char*, 3> kDashes = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 3\""};

constexpr double kWidth = 640;
constexpr double kPlotHeight = 300;
constexpr double kTop = 40;
constexpr double kRight = 18;
constexpr double kLegendRow = 20;
constexpr double kCharacter = 6.4;  // approximate width in 12-pixel text
constexpr size_t kLongestLabel = 40;

const char* colour_of(const Series& series) { return kPalette[series.colour % kPalette.size()]; }

// The first bytes of a label, without splitting a UTF-8 character.
std::string shortened(const std::string& label) {
  if (label.size() <= kLongestLabel) return label;
  size_t end = kLongestLabel;
  while (end > 0 && (static_cast<unsigned char>(label[end]) & 0xC0) == 0x80) --end;
  return label.substr(0, end) + "…";
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escape_markup(content));
}

// Adds to each y the y of the earlier series at the same x.
std::vector<Series> stacked(std::vector<Series> all) {
  std::map<double, double> heights;
  for (Series& series : all) {
    for (Point& point : series.points) point.y = heights[point.x] += point.y;
  }
  return all;
}

class Plot {
 public:
  explicit Plot(const Chart& chart) : chart_(chart), series_(chart.series) {
    if (chart.kind != Chart::Kind::kLines) series_ = stacked(std::move(series_));
    set_axes();
  }

  std::string draw() const {
    const std::string legend = draw_legend();
    const double height = legend_top() + legend_rows_ * kLegendRow + 8;
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
               "{1}\" "
               "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n"
               "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
               kWidth, height, escape_markup(chart_.title)) +
           text(kWidth / 2, 22, "middle", chart_.title, " font-size=\"15\" font-weight=\"bold\"") +
           draw_axes() + draw_series() + legend + "</svg>\n";
  }

 private:
  bool is_bars() const { return chart_.kind == Chart::Kind::kBars; }

  void set_axes() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    double low_x = kInfinity, high_x = -kInfinity, low_y = kInfinity, high_y = -kInfinity;
    for (const Series& series : series_) {
      for (const Point& point : series.points) {
        low_x = std::min(low_x, point.x);
        high_x = std::max(high_x, point.x);
        low_y = std::min(low_y, point.y);
        high_y = std::max(high_y, point.y);
      }
    }
    if (low_x > high_x) low_x = high_x = low_y = high_y = 0;
    if (chart_.from_zero) low_y = std::min(low_y, 0.0);
    y_ = round_ticks(low_y, high_y, 6, /*is_tight=*/false);
    x_ = chart_.axis == Chart::Axis::kNumber ? count_ticks(high_x)
                                             : round_ticks(low_x, high_x, 8, /*is_tight=*/true);
    if (is_bars()) x_ = category_ticks();
    size_t widest = 0;
    for (const std::string& label : y_.labels) widest = std::max(widest, label.size());
    left_ = 34 + kCharacter * static_cast<double>(widest);
  }

  // Whole numbers from 0, with room between the last point and the frame.
  static Ticks count_ticks(double most) {
    const double end = std::ceil(most * 1.05);
    return round_ticks(0, end, static_cast<int>(std::clamp(end, 1.0, 8.0)), /*is_tight=*/true);
  }

  Ticks category_ticks() const {
    Ticks ticks{
        .low = -0.5, .high = static_cast<double>(chart_.categories.size()) - 0.5, .at = {}, .labels = {}};
    for (size_t i = 0; i < chart_.categories.size(); ++i) {
      ticks.at.push_back(static_cast<double>(i));
      ticks.labels.push_back(shortened(chart_.categories[i]));
    }
    return ticks;
  }

  double place_x(double x) const {
    return left_ + (x - x_.low) / (x_.high - x_.low) * (kWidth - kRight - left_);
  }
  double place_y(double y) const { return kTop + (y_.high - y) / (y_.high - y_.low) * kPlotHeight; }
  double legend_top() const { return kTop + kPlotHeight + 52; }

  std::string draw_axes() const {
    const double bottom = kTop + kPlotHeight;
    std::string svg;
    for (size_t i = 0; i < y_.at.size(); ++i) {
      const double y = place_y(y_.at[i]);
      svg +=
          fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e4e6ea\"/>\n",
                      left_, y, kWidth - kRight, y);
      svg += text(left_ - 7, y + 4, "end", y_.labels[i]);
    }
    for (size_t i = 0; i < x_.at.size(); ++i) {
      const double x = place_x(x_.at[i]);
      svg +=
          fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#555\"/>\n",
                      x, bottom, bottom + 5);
      svg += text(x, bottom + 18, "middle", x_.labels[i]);
    }
    svg += fmt::format("<path d=\"M{0:.1f} {1} V{2} H{3}\" fill=\"none\" stroke=\"#555\"/>\n", left_, kTop,
                       bottom, kWidth - kRight);
    svg += text((left_ + kWidth - kRight) / 2, bottom + 38, "middle", chart_.x_label);
    const std::string turned = fmt::format(" transform=\"rotate(-90 14 {})\"", kTop + kPlotHeight / 2);
    return svg + text(14, kTop + kPlotHeight / 2, "middle", chart_.y_label, turned.c_str());
  }

  std::string draw_series() const {
    std::string svg;
    // Draw the last one first: other areas cover its lower part, and means the values of single steps.
    for (size_t i = 0; i < series_.size(); ++i) {
      const Series& series = series_[series_.size() - 1 - i];
      if (series.points.empty()) continue;
      svg += is_bars() ? draw_bars(series) : draw_line(series);
    }
    return svg;
  }

  std::string draw_line(const Series& series) const {
    std::string path;
    for (const Point& point : series.points) {
      path += fmt::format("{}{:.2f} {:.2f}", path.empty() ? "M" : " L", place_x(point.x), place_y(point.y));
    }
    if (chart_.kind == Chart::Kind::kStack) {
      path += fmt::format(" L{:.2f} {:.2f} L{:.2f} {:.2f} Z", place_x(series.points.back().x), place_y(0),
                          place_x(series.points.front().x), place_y(0));
      return fmt::format("<path d=\"{}\" fill=\"{}\"/>\n", path, colour_of(series));
    }
    std::string svg = fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>\n",
        path, colour_of(series), series.thin ? "0.9\" stroke-opacity=\"0.6" : "1.8",
        kDashes[static_cast<size_t>(series.dash)]);
    if (!chart_.has_points && series.points.size() > 1) return svg;
    for (const Point& point : series.points) {
      svg += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"3\" fill=\"{}\"/>\n", place_x(point.x),
                         place_y(point.y), colour_of(series));
    }
    return svg;
  }

  std::string draw_bars(const Series& series) const {
    const double width = std::min(60.0, 0.6 * (place_x(1) - place_x(0)));
    std::string svg;
    for (const Point& point : series.points) {
      svg += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                         place_x(point.x) - width / 2, place_y(point.y), width, place_y(0) - place_y(point.y),
                         colour_of(series));
    }
    return svg;
  }

  std::string draw_legend() const {
    legend_rows_ = 0;
    if (series_.size() < 2) return "";
    legend_rows_ = 1;
    double x = left_;
    std::string svg;
    for (const Series& series : series_) {
      const std::string label = shortened(series.label);
      const double width = 44 + kCharacter * static_cast<double>(label.size());
      if (x > left_ && x + width > kWidth - kRight) {
        x = left_;
        ++legend_rows_;
      }
      const double y = legend_top() + legend_rows_ * kLegendRow - 12;
      const double thickness = chart_.kind == Chart::Kind::kLines ? 2 : 9;
      svg += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-width=\"{}\"{}/>\n",
          x, y, x + 22, y, colour_of(series), thickness, kDashes[static_cast<size_t>(series.dash)]);
      svg += text(x + 28, y + 4, "start", label);
      x += width;
    }
    return svg;
  }

  const Chart& chart_;
  std::vector<Series> series_;  // stacked if the chart is
  Ticks x_;
  Ticks y_;
  double left_ = 0;
  mutable int legend_rows_ = 0;
};

}  // namespace

std::string plot_svg(const Chart& chart) { return Plot(chart).draw(); }

}  // namespace lockstep::report
