#pragma once

#include <string>
#include <string_view>

namespace lockstep::launcher {

// The text as one word of a POSIX shell: whatever it holds (quotes, spaces, newlines,
// `$`, backticks, any bytes but NUL) stays data. Left as it is where no shell could
// read it differently.
std::string shell_quote(std::string_view text);

// The text as a value of an #SBATCH line. sbatch has rules of its own there: a
// backslash escapes inside both kinds of quotes, '#' begins a comment, and the shell
// never sees it. REQUIRES: no newline, which no quoting can hold there.
std::string directive_quote(std::string_view text);

}  // namespace lockstep::launcher
