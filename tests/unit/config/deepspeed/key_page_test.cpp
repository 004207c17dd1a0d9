// The table of keys in docs/deepspeed.md must equal the table in the source.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "config/deepspeed/keys.h"

namespace lockstep::deepspeed {
namespace {

constexpr const char* kBegin = "<!-- keys: script/test -R unit_core compares them with the source -->\n";
constexpr const char* kEnd = "<!-- end of keys -->\n";

template <typename Type, typename Set>
std::string default_by_type(const Key& key, Set set) {
  std::vector<std::pair<std::string, std::string>> groups;  // value, types
  for (const auto& [name, type] : names_of(Type{})) {
    if ((key.types & type_bit(type)) == 0) continue;
    DeepSpeedConfig config;
    set(config, type);
    const std::string value = key.write(config).dump();
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == value; });
    if (same == groups.end()) {
      groups.emplace_back(value, name);
    } else {
      same->second += fmt::format(", {}", name);
    }
  }
  std::string text = fmt::format("`{}`", groups[0].first);
  for (size_t i = 1; i < groups.size(); ++i)
    text += fmt::format("; {}: `{}`", groups[i].second, groups[i].first);
  return text;
}

std::string default_of(const Key& key) {
  if (key.kind == Key::Kind::kRefused) return "off";
  if (key.kind == Key::Kind::kFixed) return fmt::format("`{}`", key.values[0]);
  if (!key.write) return "";
  if (key.section() == "optimizer.params") {
    return default_by_type<DeepSpeedConfig::Optimizer::Type>(key, [](DeepSpeedConfig& config, auto type) {
      config.optimizer.type = type;
      set_type_defaults(config.optimizer);
    });
  }
  if (key.section() == "scheduler.params") {
    return default_by_type<DeepSpeedConfig::Scheduler::Type>(key, [](DeepSpeedConfig& config, auto type) {
      config.scheduler.type = type;
      set_type_defaults(config.scheduler);
    });
  }
  return fmt::format("`{}`", key.write(DeepSpeedConfig()).dump());
}

std::string meaning_of(const Key& key) {
  std::string text = key.text;
  if (key.kind == Key::Kind::kRefused) text = "**refused:** " + text;
  if (key.kind == Key::Kind::kFixed) {
    text = key.values.size() == 1 ? "**nothing else:** " + text
                                  : fmt::format("**only `{}`:** {}", fmt::join(key.values, "` or `"), text);
  }
  for (const std::string& alias : key.aliases) text += fmt::format("; also `{}`", alias);
  const std::vector<std::string> types = type_names(key);
  const bool has_all = types.empty() || key.types == ~0U;
  return has_all ? text : fmt::format("{} ({})", text, fmt::join(types, ", "));
}

std::string table() {
  std::string text = "| key | default | meaning |\n|---|---|---|\n";
  for (const Key& key : all_keys()) {
    text += fmt::format("| `{}` | {} | {} |\n", key.path, default_of(key), meaning_of(key));
  }
  return text;
}

TEST(KeyPageTest, ListsEveryKeyWithItsDefault) {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  ASSERT_NE(root, nullptr) << "run through ctest";
  std::ifstream file(std::string(root) + "/docs/deepspeed.md");
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << "docs/deepspeed.md lacks: " << kBegin;
  ASSERT_NE(end, std::string::npos);
  const size_t after = begin + std::string(kBegin).size();
  EXPECT_EQ(page.substr(after, end - after), table()) << "put this table into docs/deepspeed.md:\n"
                                                      << table();
}

TEST(KeyPageTest, NoKeyIsThereTwice) {
  std::set<std::string> names;
  for (const Key& key : all_keys()) {
    EXPECT_TRUE(names.insert(key.path).second) << key.path;
    for (const std::string& alias : key.aliases)
      EXPECT_TRUE(names.insert(key.section() + "." + alias).second) << alias;
    EXPECT_FALSE(key.text.empty()) << key.path;
    EXPECT_EQ(key.kind == Key::Kind::kHonoured, static_cast<bool>(key.read)) << key.path;
    EXPECT_EQ(key.kind == Key::Kind::kFixed, !key.values.empty()) << key.path;
  }
}

}  // namespace
}  // namespace lockstep::deepspeed
