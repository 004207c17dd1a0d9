#include "launch/error_file.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/number.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = 1 << 20;

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// A number, or a number as text: both are about.
int64_t time_of(const json& object) {
  const auto found = object.find("timestamp");
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  if (found->is_string()) return base::parse_integer(found->get<std::string>()).value_or(0);
  return 0;
}

// What is nested deeper than anybody means is left out: to print it takes a stack as deep.
json read_json(const std::string& text) {
  constexpr int kMaxDepth = 32;
  const auto keep = [](int depth, json::parse_event_t, json&) { return depth <= kMaxDepth; };
  return json::parse(text, keep, /*allow_exceptions=*/false);
}

std::optional<WorkerError> parse(const json& content) {
  if (!content.is_object() || !content.contains("message")) return std::nullopt;
  const json& message = content["message"];
  WorkerError error;
  if (!message.is_object()) {
    error.message = text_of(message);
    error.timestamp_s = time_of(content);
    return error;
  }
  if (message.contains("message")) error.message = text_of(message["message"]);
  const auto extra = message.find("extraInfo");
  if (extra != message.end() && extra->is_object()) {
    if (extra->contains("py_callstack")) error.callstack = text_of((*extra)["py_callstack"]);
    error.timestamp_s = time_of(*extra);
  }
  return error;
}

}  // namespace

std::optional<WorkerError> read_error_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string bytes(kMaxBytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  const json content = read_json(bytes);
  if (content.is_discarded()) return std::nullopt;
  std::optional<WorkerError> error = parse(content);
  if (error) error->text = std::move(bytes);
  return error;
}

void write_error_file(const std::string& path, const WorkerError& error) {
  const json content = {{"message",
                         {{"message", error.message},
                          {"extraInfo",
                           {{"py_callstack", error.callstack.empty() ? error.message : error.callstack},
                            {"timestamp", std::to_string(error.timestamp_s)}}}}}};
  base::publish_file(path, content.dump(-1, ' ', false, json::error_handler_t::replace));
}

void pass_error_file_on(const std::string& path, const std::string& text, int exit_code) {
  json content = read_json(text);
  if (!content.is_object() || !content.contains("message") || !content["message"].is_object()) {
    base::publish_file(path, text);
    return;
  }
  content["message"]["errorCode"] = exit_code;
  base::publish_file(path, content.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace lockstep::launcher
