#include "report/escape.h"

namespace lockstep::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Json replaces bytes that are not UTF-8 when it writes.
std::string valid_utf8(std::string_view text) {
  const Json value = std::string(text);
  return Json::parse(value.dump(Json::Print{.replace_invalid = true})).get<std::string>();
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string result;
  for (const char c : valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      case '\n':
      case '\t': result += c; break;
      default: byte < 0x20 || byte == 0x7f ? result += kReplacement : result += c;
    }
  }
  return result;
}

std::string escape_script(const Json& value) {
  const std::string text = value.dump(Json::Print{.replace_invalid = true});
  std::string result;
  result.reserve(text.size());
  // JSON has these characters only in strings, where \u003c means the same.
  for (const char c : text) {
    switch (c) {
      case '<': result += "\\u003c"; break;
      case '>': result += "\\u003e"; break;
      case '&': result += "\\u0026"; break;
      default: result += c;
    }
  }
  return result;
}

}  // namespace lockstep::report
