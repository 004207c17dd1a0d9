#include "exported/segments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

namespace lockstep::exported {
namespace {

constexpr size_t kMaxListedPaths = 40;
// Of modules inside of each other: a file may have longer names.
constexpr size_t kMaxLevels = 64;

// What is known of a module that has nodes.
struct CalledModule {
  std::string path;
  std::string module_class;
  bool has_modules = false;     // inside of it
  bool has_parameters = false;  // in it or below
};

// Visits the prefixes of "a.b.c" that are modules around it: "a", "a.b".
template <typename Visit>
void for_each_prefix(const std::string& path, const Visit& visit) {
  size_t dot = path.find('.');
  for (size_t level = 0; dot != std::string::npos && level < kMaxLevels; ++level) {
    visit(path.substr(0, dot));
    dot = path.find('.', dot + 1);
  }
}

// In the order in which they begin, without the model itself.
std::vector<CalledModule> called_modules(const Program& program) {
  std::vector<CalledModule> modules;
  std::map<std::string, size_t> index;
  for (const ModuleCall& call : program.calls) {
    if (call.path.empty() || !index.try_emplace(call.path, modules.size()).second) continue;
    modules.push_back({.path = call.path, .module_class = call.module_class});
  }
  const auto mark = [&](const std::string& path, bool CalledModule::*what) {
    for_each_prefix(path, [&](const std::string& prefix) {
      const auto found = index.find(prefix);
      if (found != index.end()) modules[found->second].*what = true;
    });
  };
  for (size_t i = 0; i < modules.size(); ++i) {
    mark(std::string(modules[i].path), &CalledModule::has_modules);
  }
  for (const Input& input : program.inputs) {
    if (input.kind == Input::Kind::kParameter) mark(input.name, &CalledModule::has_parameters);
  }
  return modules;
}

// Without those inside of another of them.
std::vector<CalledModule> outermost(std::vector<CalledModule> modules) {
  std::set<std::string> paths;
  for (const CalledModule& module : modules) paths.insert(module.path);
  std::erase_if(modules, [&](const CalledModule& module) {
    bool nested = false;
    for_each_prefix(module.path, [&](const std::string& prefix) { nested = nested || paths.count(prefix); });
    return nested;
  });
  return modules;
}

// The outermost modules whose class occurs several times among them.
std::vector<CalledModule> repeated(std::vector<CalledModule> modules) {
  while (true) {
    std::map<std::string, size_t> count;
    for (const CalledModule& module : outermost(modules)) ++count[module.module_class];
    const size_t before = modules.size();
    std::erase_if(modules, [&](const CalledModule& module) {
      const auto found = count.find(module.module_class);
      return found != count.end() && found->second < 2;
    });
    if (modules.size() == before) return outermost(std::move(modules));
  }
}

std::vector<CalledModule> repeated_blocks(const std::vector<CalledModule>& modules) {
  const auto is_container = [](const CalledModule& module) {
    return module.module_class.starts_with("torch.nn.modules.container.");
  };
  // Blocks of a class of their own, then blocks that are a Sequential, then layers.
  for (const int tier : {0, 1, 2}) {
    std::vector<CalledModule> candidates;
    for (const CalledModule& module : modules) {
      const int own = !module.has_modules ? 2 : is_container(module) ? 1 : 0;
      if (module.has_parameters && own == tier) candidates.push_back(module);
    }
    std::vector<CalledModule> found = repeated(std::move(candidates));
    if (!found.empty()) return found;
  }
  return {};
}

// "h.*.ln" for "h.3.ln".
std::string without_numbers(const std::string& path) {
  std::string result;
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                        [](unsigned char c) { return std::isdigit(c); });
    result += (result.empty() ? "" : ".") + (is_number ? "*" : part);
  }
  return result;
}

// The paths for a message; of many alike one pattern.
std::string listed(const std::vector<CalledModule>& modules) {
  std::vector<std::string> paths;
  for (const CalledModule& module : modules) {
    const std::string path = modules.size() > kMaxListedPaths ? without_numbers(module.path) : module.path;
    if (std::find(paths.begin(), paths.end(), path) != paths.end()) continue;
    if (paths.size() == kMaxListedPaths) {
      paths.emplace_back("...");
      break;
    }
    paths.push_back(printable(path));
  }
  return paths.empty() ? "none" : fmt::format("{}", fmt::join(paths, ", "));
}

bool matches(const std::string& pattern, std::string path) {
  std::string slashed = pattern;
  std::replace(slashed.begin(), slashed.end(), '.', '/');
  std::replace(path.begin(), path.end(), '.', '/');
  return fnmatch(slashed.c_str(), path.c_str(), FNM_PATHNAME | FNM_NOESCAPE) == 0;
}

}  // namespace

std::vector<std::string> modules_matching(const Program& program, const std::string& pattern) {
  if (pattern.empty()) return {};
  const std::vector<CalledModule> modules = called_modules(program);
  std::vector<CalledModule> found;
  if (pattern == "auto") {
    found = repeated_blocks(modules);
  } else {
    std::istringstream patterns(pattern);
    std::set<std::string> chosen;
    for (std::string one; std::getline(patterns, one, ',');) {
      bool matched = false;
      for (const CalledModule& module : modules) {
        if (!matches(one, module.path)) continue;
        matched = true;
        chosen.insert(module.path);
      }
      if (!matched) {
        throw ProgramError(
            fmt::format("'{}' matches no module; its modules are: {}", printable(one), listed(modules)));
      }
    }
    for (const CalledModule& module : modules) {
      if (chosen.count(module.path) != 0) found.push_back(module);
    }
    found = outermost(std::move(found));
  }
  std::vector<std::string> paths;
  for (const CalledModule& module : found) paths.push_back(module.path);
  return paths;
}

std::vector<bool> calls_of(const Program& program, const std::vector<std::string>& paths) {
  const std::set<std::string> wanted(paths.begin(), paths.end());
  std::vector<bool> result;
  for (const ModuleCall& call : program.calls) result.push_back(wanted.count(call.path) != 0);
  return result;
}

std::vector<std::vector<Cut>> cuts_of(const std::vector<Node>& nodes, const Cuts& cuts) {
  std::vector<std::vector<Cut>> result;
  for (const Node& node : nodes) {
    std::vector<Cut>& own = result.emplace_back();
    bool shards = false;
    bool recomputes = false;
    for (const uint32_t call : node.calls) {
      const Cut cut{call, !shards && cuts.shard[call], !recomputes && cuts.recompute[call]};
      if (!cut.shards && !cut.recomputes) continue;
      shards = shards || cut.shards;
      recomputes = recomputes || cut.recomputes;
      own.push_back(cut);
    }
  }
  for (size_t i = 0, before = SIZE_MAX; i < nodes.size(); ++i) {
    if (nodes[i].calls.empty()) continue;
    if (before != SIZE_MAX && result[before] == result[i]) {
      for (size_t k = before + 1; k < i; ++k) result[k] = result[i];
    }
    before = i;
  }
  return result;
}

}  // namespace lockstep::exported
