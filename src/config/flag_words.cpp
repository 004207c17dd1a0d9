#include "config/flag_words.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace lockstep::config {
namespace {

bool is_flag(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

// The option of a word "--flag="; null: the word has another form, or CLI11 reports the error.
const CLI::Option* option_without_value(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("--") || word.find('=') != word.size() - 1) return nullptr;
  return app.get_option_no_throw(word.substr(0, word.size() - 1));
}

void check_takes_empty_text(const CLI::Option& option, const std::string& word) {
  if (option.get_type_name().starts_with("TEXT") && option.get_items_expected_max() == 1) return;
  throw CLI::ArgumentMismatch(fmt::format("{}: there is no value after the =", word));
}

// Replaces "--flag=" by two words, the flag and an empty one.
std::vector<std::string> with_empty_words(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> result;
  const CLI::App* command = &app;
  size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    const std::string& word = words[i];
    if (!is_flag(word)) {
      const auto chosen =
          command->get_subcommands([&](const CLI::App* each) { return each->check_name(word); });
      if (!chosen.empty()) {
        command = chosen.front();
      } else if (command->get_prefix_command()) {
        break;  // the other words belong to another program
      }
    } else if (const CLI::Option* const option = option_without_value(*command, word)) {
      check_takes_empty_text(*option, word);
      result.insert(result.end(), {word.substr(0, word.size() - 1), ""});
      continue;
    }
    result.push_back(word);
    if (!is_flag(word) || !takes_next_word(*command, word)) continue;
    // The first value may look like a flag, further values of a list may not.
    if (i + 1 < words.size()) result.push_back(words[++i]);
    const CLI::Option& option = *command->get_option_no_throw(word);
    const bool is_list = option.get_items_expected_max() > 1 && option.get_allow_extra_args();
    while (is_list && i + 1 < words.size() && !is_flag(words[i + 1])) result.push_back(words[++i]);
  }
  result.insert(result.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return result;
}

}  // namespace

void parse_words(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> all = with_empty_words(app, words);
  std::reverse(all.begin(), all.end());  // CLI11 expects them in reverse order
  app.parse(std::move(all));
}

bool takes_next_word(const CLI::App& app, const std::string& flag) {
  const bool is_long = flag.starts_with("--");
  if (is_long ? flag.find('=') != std::string::npos : flag.size() > 2) return false;
  const CLI::Option* option = app.get_option_no_throw(flag);
  return option != nullptr && option->get_expected_min() > 0;
}

}  // namespace lockstep::config
