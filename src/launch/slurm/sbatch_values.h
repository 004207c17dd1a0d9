#pragma once

#include <string>
#include <string_view>

namespace lockstep::launcher {

// The grammar of single values. Each throws ConfigError with flag, value and what is
// allowed; none accepts the empty text.

// One line of any text: not empty, no control characters, at most 4096 bytes.
bool is_line(std::string_view value);

// From 1 to 1048576.
void check_count(std::string_view flag, int value);
int parse_count(std::string_view flag, const std::string& value);
// is_line().
void check_line(std::string_view flag, const std::string& value);
// A name of the site, or several with commas: no spaces, no leading dash.
void check_name(std::string_view flag, const std::string& value);
// "30", "1:30:00", "2-12", "UNLIMITED".
void check_time(std::string_view flag, const std::string& value);
// "4000", "16G"; "0" is the whole node.
void check_memory(std::string_view flag, const std::string& value);
// "0-15", "1,3,5-9:2", "0-99%4".
void check_array(std::string_view flag, const std::string& value);
// "USR1", "SIGUSR2@120", "10@60". "B:" is refused: it would reach the batch shell only.
void check_signal(std::string_view flag, const std::string& value);
// The count of "4" or "a100:4".
int parse_gpus(std::string_view flag, const std::string& value);

}  // namespace lockstep::launcher
