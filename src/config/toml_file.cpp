#include "config/toml_file.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <toml++/toml.h>

#include <algorithm>
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

// Where a text in quotes ends that begins at `begin`: behind its last quote, or at the end of a
// line or of the file where one is missing, which toml++ reports.
size_t end_of_quotes(std::string_view text, size_t begin) {
  const char quote = text[begin];
  const std::string triple(3, quote);
  const bool is_long = text.substr(begin).starts_with(triple);
  size_t i = begin + (is_long ? 3 : 1);
  for (; i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (!is_long && (text[i] == quote || text[i] == '\n')) {
      return i + 1;
    } else if (is_long && text.substr(i).starts_with(triple)) {
      // Two more may belong to the text itself.
      return std::min(text.find_first_not_of(quote, i), i + 5);
    }
  }
  return text.size();
}

// TOML allows characters beyond ASCII in quotes and comments alone. toml++ 3.3 has undefined behaviour
// when it meets most of them elsewhere (is_non_ascii_horizontal_whitespace), so it never does.
void check_characters(std::string_view text, const std::filesystem::path& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  for (size_t i = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0; i < text.size();) {
    if (text[i] == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (text[i] == '"' || text[i] == '\'') {
      i = end_of_quotes(text, i);
    } else if (static_cast<unsigned char>(text[i]) >= 0x80) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(i), '\n') + 1;
      throw ConfigError(
          "config", fmt::format("'{}' is no TOML: line {}: a character that is not ASCII must be in quotes",
                                path.string(), line));
    } else {
      ++i;
    }
  }
}

}  // namespace

Json read_toml_file(const std::filesystem::path& path) {
  const std::optional<std::string> text = base::read_whole_file(path);
  if (!text) {
    throw ConfigError("config", fmt::format("cannot read the configuration file '{}': {}", path.string(),
                                            std::strerror(errno)));
  }
  check_characters(*text, path);
  try {
    return convert(toml::parse(std::string_view(*text), path.string()));
  } catch (const toml::parse_error& error) {
    const toml::source_position& at = error.source().begin;
    throw ConfigError("config", fmt::format("'{}' is no TOML: line {}, column {}: {}", path.string(), at.line,
                                            at.column, error.description()));
  }
}

}  // namespace lockstep::config
