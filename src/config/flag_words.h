#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::config {

// Parses the arguments of a command, without its name, with CLI11. CLI11 alone would take the next word
// as the value of "--flag="; here the value is an empty string. CLI::ParseError names a flag whose value
// cannot be an empty string.
void parse_words(CLI::App& app, const std::vector<std::string>& words);

// Whether the value of the flag is the next word.
bool takes_next_word(const CLI::App& app, const std::string& flag);

}  // namespace lockstep::config
