#pragma once

#include <string>

#include "config/text_cursor.h"

namespace lockstep::config {

// The texts of HJSON that have quotes. The cursor stands on the first quote, and after the
// call behind the last one. ConfigError: no last quote, a control character, a bad escape.

// 'text' or "text", on one line, with JSON's escapes.
std::string read_quoted_text(TextCursor& cursor);

// '''text''' over any number of lines, without escapes. White space up to the column of the
// first quote is no part of a line, nor is the line end before the last quotes.
std::string read_lines_text(TextCursor& cursor);

}  // namespace lockstep::config
