#include "launcher/error_file.h"

#include <lockstep/json.h>

#include "base/file.h"
#include "base/number.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
// JSON that is nested deeper than any real error is left out; the rest of the file counts.
constexpr Json::ParseRules kParseRules = {.max_depth = 32, .drop_deeper = true};

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// A number, or a number as text: torchrun's versions write both.
int64_t time_of(const Json& object) {
  const Json* const found = object.find("timestamp");
  if (found == nullptr) return 0;
  if (found->is_integer_of<int64_t>()) return found->get<int64_t>();
  if (found->is_string()) return base::parse_integer(found->get<std::string>()).value_or(0);
  return 0;
}

std::optional<WorkerError> parse(const Json& content) {
  if (!content.is_object() || !content.contains("message")) return std::nullopt;
  const Json& message = content["message"];
  WorkerError error;
  if (!message.is_object()) {
    error.message = text_of(message);
    error.timestamp_s = time_of(content);
    return error;
  }
  if (message.contains("message")) error.message = text_of(message["message"]);
  const Json* const extra = message.find("extraInfo");
  if (extra != nullptr && extra->is_object()) {
    if (const Json* const callstack = extra->find("py_callstack")) error.callstack = text_of(*callstack);
    error.timestamp_s = time_of(*extra);
  }
  return error;
}

}  // namespace

std::optional<WorkerError> read_error_file(const std::string& path) {
  std::optional<std::string> bytes = base::read_whole_file(path, kMaxBytes);
  if (!bytes) return std::nullopt;
  const std::optional<Json> content = Json::try_parse(*bytes, kParseRules);
  if (!content) return std::nullopt;
  std::optional<WorkerError> error = parse(*content);
  if (error) error->text = std::move(*bytes);
  return error;
}

void write_error_file(const std::string& path, const WorkerError& error) {
  const Json content = {{"message",
                         {{"message", error.message},
                          {"extraInfo",
                           {{"py_callstack", error.callstack.empty() ? error.message : error.callstack},
                            {"timestamp", std::to_string(error.timestamp_s)}}}}}};
  base::publish_file(path, content.dump(Json::Print{.replace_invalid = true}));
}

void forward_error_file(const std::string& path, const std::string& text, int exit_code) {
  Json content = Json::try_parse(text, kParseRules).value_or(nullptr);
  if (!content.is_object() || !content.contains("message") || !content["message"].is_object()) {
    base::publish_file(path, text);
    return;
  }
  content["message"]["errorCode"] = exit_code;
  base::publish_file(path, content.dump(Json::Print{.replace_invalid = true}));
}

}  // namespace lockstep::launcher
