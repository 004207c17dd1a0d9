#pragma once

#include <string>
#include <string_view>
#include <vector>

// Lines of CSV files, as RFC 4180 defines them.
namespace lockstep::track {

// The text of one field, in quotes if it has a comma or a quote.
inline std::string csv_field(std::string_view field) {
  if (field.find_first_of(",\"") == std::string_view::npos) return std::string(field);
  std::string result = "\"";
  for (const char c : field) result.append(c == '"' ? 2 : 1, c);
  return result + '"';
}

// The fields of a line, which has no line break at its end.
inline std::vector<std::string> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool in_quotes = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && in_quotes && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      in_quotes = !in_quotes;
    } else if (line[i] == ',' && !in_quotes) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

}  // namespace lockstep::track
