#include "report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "report/chart.h"
#include "report/escape.h"
#include "report/page.h"
#include "report/run.h"
#include "report/svg_plot.h"

namespace lockstep::report {
namespace {

// Longer texts are cut: they are the content of a file.
constexpr size_t kMaxTextBytes = 64 << 10;

std::string value_text(const Json& value) {
  if (value.is_null()) return "unset";
  if (value.is_string()) return value.get<std::string>();
  return value.dump(Json::Print{.replace_invalid = true});
}

std::string code(const std::string& text) {
  return fmt::format("<code>{}</code>", escape_markup(text.substr(0, kMaxTextBytes)));
}

std::string details(const std::string& title, const std::string& html, bool open = false) {
  return fmt::format("<details{}><summary>{}</summary>\n{}</details>\n", open ? " open" : "",
                     escape_markup(title), html);
}

std::string table(const std::string& head, const std::string& rows) {
  return fmt::format(
      "<div class=\"scroll\"><table><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>\n", head,
      rows);
}

std::string run_heads(const std::vector<Run>& runs) {
  std::string heads;
  for (size_t i = 0; i < runs.size(); ++i) {
    heads += fmt::format("<th>{}{}</th>", colour_dot(i), escape_markup(runs[i].name));
  }
  return heads;
}

std::string summary_tiles(const Run& run) {
  std::string tiles;
  for (const Fact& fact : facts_of(run)) {
    tiles += fmt::format(
        "<div class=\"tile\"><span class=\"label\">{}</span><span class=\"value\">{}</span>"
        "<span class=\"detail\">{}</span></div>\n",
        escape_markup(fact.label), escape_markup(fact.value), escape_markup(fact.detail));
  }
  return tiles.empty() ? "" : fmt::format("<section class=\"tiles\">\n{}</section>\n", tiles);
}

// One row per run, one column per fact that any run has.
std::string summary_table(const std::vector<Run>& runs) {
  std::vector<std::string> labels;
  std::vector<std::vector<Fact>> facts;
  for (const Run& run : runs) {
    facts.push_back(facts_of(run));
    for (const Fact& fact : facts.back()) {
      if (std::find(labels.begin(), labels.end(), fact.label) == labels.end()) labels.push_back(fact.label);
    }
  }
  std::string head = "<th>Run</th>";
  for (const std::string& label : labels) head += fmt::format("<th class=\"number\">{}</th>", label);
  std::string rows;
  for (size_t i = 0; i < runs.size(); ++i) {
    rows += fmt::format("<tr><th>{}{}</th>", colour_dot(i), escape_markup(runs[i].name));
    for (const std::string& label : labels) {
      const auto found = std::find_if(facts[i].begin(), facts[i].end(),
                                      [&](const Fact& fact) { return fact.label == label; });
      rows += found == facts[i].end()
                  ? "<td class=\"number none\">–</td>"
                  : fmt::format("<td class=\"number\">{}<small>{}</small></td>", escape_markup(found->value),
                                escape_markup(found->detail));
    }
    rows += "</tr>\n";
  }
  return section("Summary", table(head, rows));
}

std::string remarks_html(const std::vector<Run>& runs, const std::vector<std::string>& common) {
  std::string items;
  for (const Run& run : runs) {
    for (const std::string& remark : run.remarks) {
      items += runs.size() == 1
                   ? fmt::format("<li>{}</li>\n", escape_markup(remark))
                   : fmt::format("<li><b>{}</b>: {}</li>\n", escape_markup(run.name), escape_markup(remark));
    }
  }
  for (const std::string& remark : common) items += fmt::format("<li>{}</li>\n", escape_markup(remark));
  return items.empty() ? "" : fmt::format("<ul class=\"remarks\">\n{}</ul>\n", items);
}

std::string ranks_html(const Run& run, bool named) {
  if (run.ranks.empty()) return "";
  std::vector<std::string> hosts;
  for (const RankPlace& place : run.ranks) {
    if (std::find(hosts.begin(), hosts.end(), place.host) == hosts.end()) hosts.push_back(place.host);
  }
  std::string html = named ? fmt::format("<h3>{}</h3>", escape_markup(run.name)) : "";
  if (!run.backend.empty() && run.backend != "none") {
    html += fmt::format("<p>Collectives over {}.</p>", code(run.backend));
  }
  html += "<div class=\"hosts\">";
  for (const std::string& host : hosts) {
    html += fmt::format("<div class=\"card host\"><h4>{}</h4><div class=\"ranks\">", escape_markup(host));
    for (const RankPlace& place : run.ranks) {
      if (place.host != host) continue;
      html += fmt::format("<span class=\"rank\" title=\"local rank {}\"><b>{}</b>{}</span>", place.local_rank,
                          place.rank, escape_markup(place.device));
    }
    html += "</div></div>";
  }
  return html + "</div>\n";
}

std::set<std::string> keys_of(const std::vector<Run>& runs) {
  std::set<std::string> keys;
  for (const Run& run : runs) {
    for (const auto& [key, value] : run.config.items()) keys.insert(key);
  }
  return keys;
}

std::string cell(const Run& run, const std::string& key) {
  const Json* const found = run.config.find(key);
  return found == nullptr ? "<td class=\"none\">–</td>"
                          : fmt::format("<td>{}</td>", code(value_text(*found)));
}

bool differs_from_default(const Run& run, const std::string& key) {
  const Json* const own = run.config.find(key);
  const Json* const usual = run.defaults.find(key);
  return own != nullptr && (usual == nullptr || *own != *usual);
}

std::string config_row(const std::vector<Run>& runs, const std::string& key) {
  std::string row = fmt::format("<tr><th>{}</th>", escape_markup(key));
  for (const Run& run : runs) row += cell(run, key);
  if (runs.front().defaults.empty()) return row + "</tr>\n";
  const Json* const usual = runs.front().defaults.find(key);
  row += usual == nullptr ? "<td class=\"none\">–</td>"
                          : fmt::format("<td class=\"usual\">{}</td>", code(value_text(*usual)));
  return row + "</tr>\n";
}

// First the options that differ between the runs or from the defaults, then all options.
std::string configuration_html(const std::vector<Run>& runs) {
  const bool several = runs.size() > 1;
  std::string changed;
  std::string all;
  for (const std::string& key : keys_of(runs)) {
    const std::string row = config_row(runs, key);
    const bool differs =
        several ? std::any_of(runs.begin(), runs.end(),
                              [&](const Run& run) {
                                return run.config.value(key, Json()) != runs[0].config.value(key, Json());
                              })
                : !runs[0].defaults.empty() && differs_from_default(runs[0], key);
    if (differs) changed += row;
    all += row;
  }
  if (all.empty()) return "";
  const std::string head = fmt::format("<th>Option</th>{}{}", several ? run_heads(runs) : "<th>Value</th>",
                                       runs[0].defaults.empty() ? "" : "<th>Default</th>");
  const bool knows_changes = several || !runs[0].defaults.empty();
  std::string html;
  if (!changed.empty()) html = table(head, changed);
  if (changed.empty() && knows_changes) {
    html = fmt::format("<p>{}</p>",
                       several ? "The runs have the same configuration." : "All values are the defaults.");
  }
  html += details("All options", table(head, all), /*open=*/!knows_changes);
  return section(several ? "Configuration: what differs" : "Configuration", html);
}

std::string models_html(const std::vector<Run>& runs) {
  std::string html;
  for (const Run& run : runs) {
    if (run.model.empty()) continue;
    html += details(runs.size() == 1 ? "Layers" : run.name,
                    fmt::format("<pre>{}</pre>", escape_markup(run.model.substr(0, kMaxTextBytes))));
  }
  return html.empty() ? "" : section("Model", html);
}

std::string rank_maps_html(const std::vector<Run>& runs) {
  std::string html;
  for (const Run& run : runs) html += ranks_html(run, runs.size() > 1);
  return html.empty() ? "" : section("Ranks", html);
}

std::string started_text(const Run& run) {
  if (run.times.empty()) return "";
  const auto seconds = static_cast<std::time_t>(run.times.front().y);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("started {:%Y-%m-%d %H:%M:%S}, ", local);
}

std::string names_of(const std::vector<Run>& runs) {
  std::vector<std::string> names;
  for (const Run& run : runs) names.push_back(run.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string run_page(std::vector<Run> runs, const std::string& version) {
  const bool one = runs.size() == 1;
  std::vector<std::string> remarks;
  Page page;
  page.charts = charts_of(runs, remarks);
  page.title = one ? runs[0].name : fmt::format("{} runs", runs.size());
  page.subtitle = one ? started_text(runs[0]) + runs[0].folder.string() : names_of(runs);
  page.before = (one ? summary_tiles(runs[0]) : summary_table(runs)) + remarks_html(runs, remarks);
  page.after = configuration_html(runs) + rank_maps_html(runs) + models_html(runs);
  page.runs = std::move(runs);
  page.version = version;
  return render_page(page);
}

// --- files ---

namespace {

namespace fs = std::filesystem;

// Adds the name of the parent folder to runs of the same name.
void make_names_distinct(std::vector<Run>& runs) {
  std::map<std::string, int> count;
  for (const Run& run : runs) ++count[run.name];
  for (Run& run : runs) {
    if (count[run.name] > 1) run.name = (run.folder.parent_path().filename() / run.name).string();
  }
}

}  // namespace

std::vector<Run> read_runs(const std::vector<fs::path>& folders) {
  if (folders.empty()) throw ConfigError("report", "no run is given: name the folder of at least one");
  std::vector<Run> runs;
  for (const fs::path& folder : folders) runs.push_back(read_run(folder));
  make_names_distinct(runs);
  return runs;
}

namespace {

double interpolate(const std::vector<Point>& map, double x) {
  const auto next = std::upper_bound(map.begin(), map.end(), x,
                                     [](double value, const Point& point) { return value < point.x; });
  if (next == map.begin()) return map.front().y;
  if (next == map.end()) return map.back().y;
  const Point& before = *(next - 1);
  return before.y + (next->y - before.y) * (x - before.x) / (next->x - before.x);
}

// A paper shows epochs if all runs have them, otherwise steps.
void set_paper_axis(Chart& chart, const std::vector<Run>& runs) {
  if (chart.axis == Chart::Axis::kSeconds) chart.x_label = "seconds";
  if (chart.axis != Chart::Axis::kStep) return;
  std::vector<std::vector<Point>> epochs;
  for (const Run& run : runs) epochs.push_back(epochs_of(run));
  const bool known =
      std::all_of(epochs.begin(), epochs.end(), [](const auto& map) { return map.size() > 1; });
  chart.x_label = known ? "epoch" : "step";
  if (!known) return;
  for (Series& series : chart.series) {
    for (Point& point : series.points) point.x = interpolate(epochs[series.run], point.x);
  }
}

}  // namespace

void write_report(const std::vector<fs::path>& run_folders, const fs::path& output) {
  base::publish_file(output, run_page(read_runs(run_folders)));
}

std::vector<fs::path> write_svgs(const std::vector<fs::path>& run_folders, const fs::path& folder) {
  const std::vector<Run> runs = read_runs(run_folders);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw ConfigError("report", fmt::format("cannot create the folder for the charts, {}: '{}'",
                                            error.message(), folder.string()));
  }
  std::vector<std::string> remarks;
  std::vector<fs::path> paths;
  for (Chart& chart : charts_of(runs, remarks)) {
    set_paper_axis(chart, runs);
    paths.push_back(folder / (chart.id + ".svg"));
    base::publish_file(paths.back(), plot_svg(chart));
  }
  return paths;
}

}  // namespace lockstep::report
