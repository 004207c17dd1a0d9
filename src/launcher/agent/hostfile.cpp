#include "launcher/agent/hostfile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/number.h"

namespace lockstep::launcher {
namespace {

constexpr int64_t kMostSlots = 1 << 16;

std::vector<std::string> names_of(const std::vector<HostfileNode>& nodes) {
  std::vector<std::string> names;
  for (const HostfileNode& node : nodes) names.push_back(node.name);
  return names;
}

// "NAME slots=NUMBER"; nullopt: another line.
std::optional<HostfileNode> parse_node(const std::string& line) {
  constexpr std::string_view kSlots = "slots=";
  std::istringstream words(line);
  std::string name;
  std::string slots;
  std::string rest;
  if (!(words >> name >> slots) || words >> rest || !slots.starts_with(kSlots)) return std::nullopt;
  const std::optional<int64_t> number = base::parse_integer(std::string_view(slots).substr(kSlots.size()));
  if (!number || *number < 1 || *number > kMostSlots) return std::nullopt;
  return HostfileNode{name, static_cast<int>(*number)};
}

// The names in "NAME@NAME".
std::set<std::string> parse_choice(const char* flag, const std::string& text,
                                   const std::vector<HostfileNode>& nodes) {
  std::set<std::string> chosen;
  std::istringstream parts(text);
  for (std::string name; std::getline(parts, name, '@');) {
    if (name.find(':') != std::string::npos) {
      throw ConfigError("run", fmt::format("{} chooses nodes, write NAME@NAME: choose GPUs of a node with "
                                           "CUDA_VISIBLE_DEVICES: '{}'",
                                           flag, name));
    }
    const std::vector<std::string> names = names_of(nodes);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw ConfigError("run", fmt::format("{} names '{}', which is no node of the hostfile: {}", flag, name,
                                           fmt::join(names, ", ")));
    }
    chosen.insert(name);
  }
  return chosen;
}

bool is_same_machine(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const bool one_is_short = a.find('.') == std::string_view::npos || b.find('.') == std::string_view::npos;
  return one_is_short && a.substr(0, a.find('.')) == b.substr(0, b.find('.'));
}

}  // namespace

std::vector<HostfileNode> read_hostfile(const std::filesystem::path& path) {
  const std::optional<std::string> text = base::read_whole_file(path);
  if (!text) {
    throw ConfigError(
        "run", fmt::format("--hostfile cannot be read, {}: '{}'", std::strerror(errno), path.string()));
  }
  std::vector<HostfileNode> nodes;
  std::map<std::string, int> lines;
  std::istringstream stream(*text);
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    const std::string content = line.substr(0, line.find('#'));
    if (content.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::optional<HostfileNode> node = parse_node(content);
    if (!node) {
      throw ConfigError("run",
                        fmt::format("line {} of the hostfile must be NAME slots=NUMBER, with 1 slot or more: "
                                    "'{}' in '{}'",
                                    number, line, path.string()));
    }
    const auto [first, is_new] = lines.emplace(node->name, number);
    if (!is_new) {
      throw ConfigError(
          "run", fmt::format("line {} of the hostfile has the node of line {} again, remove one: '{}' in "
                             "'{}'",
                             number, first->second, node->name, path.string()));
    }
    nodes.push_back(*node);
  }
  if (nodes.empty()) {
    throw ConfigError(
        "run", fmt::format("the hostfile has no node, write lines NAME slots=NUMBER: '{}'", path.string()));
  }
  return nodes;
}

std::vector<HostfileNode> choose_nodes(std::vector<HostfileNode> nodes, const std::string& include,
                                       const std::string& exclude) {
  if (!include.empty() && !exclude.empty()) {
    throw ConfigError("run", "--include and --exclude exclude each other: remove one of them");
  }
  const bool includes = !include.empty();
  if (!includes && exclude.empty()) return nodes;
  const std::set<std::string> chosen =
      parse_choice(includes ? "--include" : "--exclude", includes ? include : exclude, nodes);
  std::erase_if(nodes, [&](const HostfileNode& node) { return chosen.contains(node.name) != includes; });
  if (nodes.empty()) throw ConfigError("run", fmt::format("--exclude leaves no node: '{}'", exclude));
  return nodes;
}

int place_among(const std::vector<HostfileNode>& nodes, std::string_view host) {
  std::optional<int> place;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!is_same_machine(nodes[i].name, host)) continue;
    if (place) {
      throw ConfigError(
          "run", fmt::format("this machine, {}, may be node {} or {} of the hostfile: give --node-rank", host,
                             nodes[static_cast<size_t>(*place)].name, nodes[i].name));
    }
    place = static_cast<int>(i);
  }
  if (!place) {
    throw ConfigError(
        "run", fmt::format("this machine, {}, is no node of the hostfile: give --node-rank, or correct "
                           "the names: {}",
                           host, fmt::join(names_of(nodes), ", ")));
  }
  return *place;
}

}  // namespace lockstep::launcher
