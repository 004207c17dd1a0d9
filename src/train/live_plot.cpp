// LivePlotMetrics: curves as text.
#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/trainer.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

bool is_wanted(const LivePlotOptions& options, const std::string& name) {
  const std::vector<std::string>& names = options.metrics;
  if (names.empty()) return name.ends_with("_loss");
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The letter of curve `i`.
char letter_of(size_t i) { return static_cast<char>('a' + i % 26); }

// [0, cells): where a value lies between two others.
int cell_of(double value, double low, double high, int cells) {
  const double fraction = high > low ? (value - low) / (high - low) : 0.0;
  return std::clamp(static_cast<int>(std::lround(fraction * (cells - 1))), 0, cells - 1);
}

}  // namespace

LivePlotMetrics::LivePlotMetrics(const LivePlotOptions& options)
    : Callback(options.callback), options_(options) {
  if (options.width < 2 || options.height < 2) {
    throw ConfigError("train", fmt::format("a plot needs at least 2 x 2 characters: {} x {}", options.width,
                                           options.height));
  }
}

void LivePlotMetrics::run(Trainer& trainer) {
  const auto x = static_cast<double>(trainer.result().iteration);
  for (const auto& [name, value] : trainer.result().metrics) {
    if (is_wanted(options_, name) && std::isfinite(value)) curves_[name].push_back({x, value});
  }
  if (!curves_.empty()) trainer.print(plot());
}

std::string LivePlotMetrics::plot() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Point low{kInfinity, kInfinity};
  Point high{-kInfinity, -kInfinity};
  for (const auto& [name, points] : curves_) {
    for (const Point& point : points) {
      low = {std::min(low.x, point.x), std::min(low.y, point.y)};
      high = {std::max(high.x, point.x), std::max(high.y, point.y)};
    }
  }
  std::vector<std::string> rows(static_cast<size_t>(options_.height),
                                std::string(static_cast<size_t>(options_.width), ' '));
  std::string legend;
  size_t curve = 0;
  for (const auto& [name, points] : curves_) {
    const char letter = letter_of(curve++);
    for (const Point& point : points) {
      const int row = options_.height - 1 - cell_of(point.y, low.y, high.y, options_.height);
      const int column = cell_of(point.x, low.x, high.x, options_.width);
      rows[static_cast<size_t>(row)][static_cast<size_t>(column)] = letter;
    }
    legend += fmt::format("  {}: {} {:.6g}", letter, name, points.back().y);
  }
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool is_first = i == 0;
    const bool is_last = i + 1 == rows.size();
    const std::string label = is_first  ? fmt::format("{:.4g}", high.y)
                              : is_last ? fmt::format("{:.4g}", low.y)
                                        : "";
    text += fmt::format("{:>10} |{}\n", label, rows[i]);
  }
  text += fmt::format("{:>10} +{}\n{:>10}  epoch {:g} to {:g}{}", "",
                      std::string(static_cast<size_t>(options_.width), '-'), "", low.x, high.x, legend);
  return text;
}

std::string LivePlotMetrics::state() const {
  Json state = Json::object();
  for (const auto& [name, points] : curves_) {
    for (const Point& point : points) state[name].push_back({point.x, point.y});
  }
  return state.dump();
}

void LivePlotMetrics::load_state(const std::string& state) {
  curves_.clear();
  const Json curves = Json::parse(state);
  for (const auto& [name, points] : curves.items()) {
    for (const Json& point : points)
      curves_[name].push_back({point.at(0).get<double>(), point.at(1).get<double>()});
  }
}

}  // namespace lockstep
