#include "launch/slurm/shell_quote.h"

#include "base/check.h"

namespace lockstep::launcher {
namespace {

bool is_plain(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  return !text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos;
}

}  // namespace

std::string shell_quote(std::string_view text) {
  if (is_plain(text)) return std::string(text);
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += R"('\'')";
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string directive_quote(std::string_view text) {
  base::check(text.find('\n') == std::string_view::npos, "a newline in an #SBATCH line");
  if (is_plain(text)) return std::string(text);
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

}  // namespace lockstep::launcher
