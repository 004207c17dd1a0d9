#include "config/toml_file.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/whole_file.h"

namespace lockstep::config {
namespace {

Json convert(const toml::node& node) {
  Json result;
  node.visit([&result](const auto& value) {
    using Node = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Node, toml::table>) {
      result = Json::object();
      for (const auto& [key, inner] : value) result[std::string(key.str())] = convert(inner);
    } else if constexpr (std::is_same_v<Node, toml::array>) {
      result = Json::array();
      for (const auto& inner : value) result.push_back(convert(inner));
    } else if constexpr (toml::is_string<Node> || toml::is_boolean<Node> || toml::is_number<Node>) {
      result = value.get();
    } else {
      std::ostringstream text;
      text << value.get();
      result = text.str();
    }
  });
  return result;
}

}  // namespace

Json read_toml_file(const std::filesystem::path& path) {
  const std::optional<std::string> text = base::read_whole_file(path);
  if (!text) {
    throw ConfigError("config", fmt::format("cannot read the configuration file '{}': {}", path.string(),
                                            std::strerror(errno)));
  }
  try {
    return convert(toml::parse(std::string_view(*text), path.string()));
  } catch (const toml::parse_error& error) {
    const toml::source_position& at = error.source().begin;
    throw ConfigError("config", fmt::format("'{}' is no TOML: line {}, column {}: {}", path.string(), at.line,
                                            at.column, error.description()));
  }
}

}  // namespace lockstep::config
