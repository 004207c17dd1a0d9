#include "config/hjson_source.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sodium.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/whole_file.h"
#include "config/text_cursor.h"

namespace lockstep::config {
namespace {

std::optional<std::string> decode_base64(const std::string& text, int variant) {
  std::string bytes(text.size() * 3 / 4 + 3, '\0');
  size_t size = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), "\r\n", &size, nullptr, variant) != 0) {
    return std::nullopt;
  }
  bytes.resize(size);
  return bytes;
}

// A misspelt path may look like base64; a document is text.
bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = utf8_length(bytes);
    const auto lead = static_cast<unsigned char>(bytes[0]);
    if (length == 0 || (lead < 0x20 && !std::isspace(lead))) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

}  // namespace

HjsonSource read_hjson_file(const std::filesystem::path& path) {
  const auto fail = [&](std::string_view reason) {
    throw ConfigError("config",
                      fmt::format("cannot read the configuration file '{}': {}", path.string(), reason));
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail(std::strerror(error ? error.value() : ENOENT));
  // A pipe would give its text to one of the ranks only.
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kMaxTextBytes)
    fail(fmt::format("it has {} bytes where {} is the most", size, kMaxTextBytes));
  std::optional<std::string> text = base::read_whole_file(path);
  if (!text) fail(std::strerror(errno));
  return {path.string(), std::move(*text)};
}

HjsonSource read_hjson_argument(const std::string& path_or_base64) {
  if (path_or_base64.empty()) {
    throw ConfigError("config", "expected a configuration file or its text in base64: nothing was given");
  }
  std::error_code ignored;
  if (std::filesystem::exists(path_or_base64, ignored)) return read_hjson_file(path_or_base64);
  for (const int variant : {sodium_base64_VARIANT_URLSAFE, sodium_base64_VARIANT_URLSAFE_NO_PADDING}) {
    const std::optional<std::string> text = decode_base64(path_or_base64, variant);
    if (text && is_text(*text)) return {"base64", *text};
  }
  throw ConfigError("config",
                    fmt::format("no such configuration file, and no text in URL-safe base64 either: {}",
                                quoted_for_message(path_or_base64)));
}

}  // namespace lockstep::config
