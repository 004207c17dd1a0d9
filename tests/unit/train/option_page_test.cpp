// The table of options in docs/trainer.md must have the names, defaults, aliases and choices of the option
// table.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <lockstep/config.h>
#include <lockstep/json.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "train/train_options.h"

namespace lockstep::train {
namespace {

constexpr const char* kBegin = "| field | default | meaning |";

struct Row {
  std::vector<std::string> names;
  std::string default_value;
  std::string meaning;
};

std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

std::vector<Row> rows_of_page() {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (root == nullptr) throw std::runtime_error("run through ctest");
  std::ifstream page(std::string(root) + "/docs/trainer.md");
  std::string line;
  while (std::getline(page, line) && line != kBegin) {
  }
  std::getline(page, line);  // the line of dashes
  std::vector<Row> rows;
  const std::regex cells("\\| (.*?) \\| (.*?) \\| (.*) \\|");
  for (std::smatch match; std::getline(page, line) && std::regex_match(line, match, cells);) {
    rows.push_back({all_matches(match[1], "`(\\w+)`"),
                    std::regex_replace(match[2].str(), std::regex("`"), ""), match[3]});
  }
  return rows;
}

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// An option without a value has a default in words: its help ends with "unset: WORDS" or "empty: WORDS".
std::string default_of(const Json& value, const std::string& help) {
  const bool has_value = !value.is_null() && value != Json("") && value != Json::object();
  if (has_value && value.is_string()) return value.get<std::string>();
  if (has_value) return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
  std::smatch match;
  if (std::regex_search(help, match, std::regex("; (unset|empty): (.*)$"))) return match[2];
  return "the help says none";
}

std::string summary(const std::string& name, const std::string& default_value,
                    const std::vector<std::string>& aliases) {
  return fmt::format("{} | {} | {}\n", name, default_value, fmt::join(aliases, " "));
}

struct Option {
  std::string name;
  std::string default_value;
  std::vector<std::string> aliases;  // --run-dir
  std::vector<std::string> choices;
};

std::vector<Option> options_of_source() {
  TrainConfig config;
  const config::OptionTable table = options_of(config);
  const Json values = table.to_json();
  const std::vector<config::OptionUsage> usages = table.usage();
  std::vector<Option> options;
  for (const std::string& name : table.names()) {
    const auto usage = std::find_if(usages.begin(), usages.end(), [&](const auto& candidate) {
      return candidate.spellings.front() == "--" + dashed(name);
    });
    if (usage == usages.end()) throw std::runtime_error(name + " has no usage");
    Option option{name, default_of(values.at(name), usage->help), {}, usage->choices};
    for (const std::string& spelling : usage->spellings) {
      const bool is_alias = dashed(spelling) == spelling && spelling != usage->spellings.front();
      if (is_alias) option.aliases.push_back(spelling);
    }
    options.push_back(std::move(option));
  }
  return options;
}

TEST(OptionPageTest, ListsEveryOptionWithItsDefaultAndOtherNames) {
  std::string expected, page;
  for (const Option& option : options_of_source()) {
    expected += summary(option.name, option.default_value, option.aliases);
  }
  for (const Row& row : rows_of_page()) {
    const std::vector<std::string> aliases = all_matches(row.meaning, "also `(--[a-z-]+)`");
    for (const std::string& name : row.names) page += summary(name, row.default_value, aliases);
  }
  EXPECT_EQ(page, expected) << "docs/trainer.md differs from the options of TrainConfig";
}

TEST(OptionPageTest, ExplainsEveryChoice) {
  const std::vector<Row> rows = rows_of_page();
  size_t explained = 0;
  for (const Option& option : options_of_source()) {
    for (const std::string& choice : option.choices) {
      const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& candidate) {
        return std::count(candidate.names.begin(), candidate.names.end(), option.name) > 0;
      });
      ASSERT_NE(row, rows.end()) << option.name;
      const std::string text = row->default_value + " " + row->meaning;
      EXPECT_TRUE(std::regex_search(text, std::regex("\\b" + choice + "\\b")))
          << "docs/trainer.md does not name " << option.name << " " << choice;
      ++explained;
    }
  }
  EXPECT_GT(explained, 30u);
}

}  // namespace
}  // namespace lockstep::train
