#include "launch/rendezvous/job_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/job_token.h"
#include "launch/rendezvous/fields.h"
#include "launch/rendezvous/frame.h"

namespace lockstep::launcher::wire {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxPid = INT32_MAX;
constexpr int64_t kMaxStopMs = INT64_MAX / 2'000'000;  // which a clock of nanoseconds can count

// Takes the text up to the separator off the front.
std::string_view take(std::string_view& rest, char separator) {
  const size_t end = rest.find(separator);
  if (end == std::string_view::npos) throw ProtocolError("a map with less than its nodes");
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return word;
}

int64_t take_integer(std::string_view& rest, char separator, int64_t min, int64_t max) {
  const std::string_view word = take(rest, separator);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number < min || number > max) {
    throw ProtocolError("a map with a number that is none or out of range");
  }
  return number;
}

std::string_view take_name(std::string_view& rest) {
  const std::string_view name = take(rest, '\t');
  if (name.size() > kMaxName || !is_word(name)) throw ProtocolError("a map with a malformed name or address");
  return name;
}

}  // namespace

std::string cut(const std::string& text, size_t max_bytes) { return text.substr(0, max_bytes); }

Json to_json(const NodeInfo& node) {
  Json result{{"host", cut(node.host, kMaxName)},          {"address", cut(node.address, kMaxName)},
              {"local_world_size", node.local_world_size}, {"pid", node.pid},
              {"role", cut(node.role, kMaxName)},          {"stop_timeout_ms", node.stop_timeout.count()}};
  if (node.node_rank) result["node_rank"] = *node.node_rank;
  return result;
}

NodeInfo node_from(const Json& object) {
  const Fields fields(object);
  NodeInfo node;
  node.host = fields.word("host", kMaxName);
  node.address = fields.word("address", kMaxName);
  node.local_world_size = static_cast<int>(fields.integer("local_world_size", 1, kMaxRanks));
  node.pid = fields.integer("pid", 0, kMaxPid);
  node.role = fields.word("role", kMaxName);
  if (fields.has("stop_timeout_ms"))
    node.stop_timeout = std::chrono::milliseconds(fields.integer("stop_timeout_ms", 0, kMaxStopMs));
  if (fields.has("node_rank"))
    node.node_rank = static_cast<int>(fields.integer("node_rank", 0, kMaxNodes - 1));
  return node;
}

Json to_json(const Generation& generation) {
  return {{"generation", generation.number},       {"restart_count", generation.restart_count},
          {"master_addr", generation.master_addr}, {"master_port", generation.master_port},
          {"secret", generation.secret},           {"nodes", generation.nodes.size()}};
}

std::string node_table(const std::vector<NodeInfo>& nodes) {
  std::string table;
  for (const NodeInfo& node : nodes) {
    fmt::format_to(std::back_inserter(table), "{}\t{}\t{}\t{}\t{}\n", node.host, node.address, node.role,
                   node.local_world_size, node.pid);
  }
  return table;
}

Generation generation_from(const Json& object, std::string_view table) {
  const Fields fields(object);
  Generation generation;
  generation.number = static_cast<int>(fields.integer("generation", 0, kMaxGenerations));
  generation.restart_count = static_cast<int>(fields.integer("restart_count", 0, kMaxGenerations));
  generation.master_addr = fields.word("master_addr", kMaxName);
  generation.master_port = static_cast<uint16_t>(fields.integer("master_port", 1, UINT16_MAX));
  generation.secret = base::to_hex(fields.bytes("secret"));
  const auto count = static_cast<size_t>(fields.integer("nodes", 1, kMaxNodes));
  generation.nodes.reserve(std::min(count, table.size()));
  for (size_t i = 0; i < count; ++i) {
    NodeInfo& node = generation.nodes.emplace_back();
    node.node_rank = static_cast<int>(i);
    node.host = take_name(table);
    node.address = take_name(table);
    node.role = take_name(table);
    node.local_world_size = static_cast<int>(take_integer(table, '\t', 1, kMaxRanks));
    node.pid = take_integer(table, '\n', 0, kMaxPid);
  }
  if (!table.empty()) throw ProtocolError("a map with more than its nodes");
  return generation;
}

Json to_json(const JobFailure& failure) {
  Json lines = Json::array();
  const size_t skipped = failure.last_lines.size() > kMaxLines ? failure.last_lines.size() - kMaxLines : 0;
  for (size_t i = skipped; i < failure.last_lines.size(); ++i)
    lines.push_back(cut(failure.last_lines[i], kMaxLine));
  return {{"kind", failure.kind == JobFailure::Kind::kNode ? "node" : "worker"},
          {"generation", failure.generation},
          {"node_rank", failure.node_rank},
          {"host", cut(failure.host, kMaxName)},
          {"time_us", failure.time_us},
          {"message", cut(failure.message, kMaxMessage)},
          {"error_file", failure.error_file.size() <= kMaxMessage ? failure.error_file : ""},
          {"rank", failure.rank},
          {"local_rank", failure.local_rank},
          {"pid", failure.pid},
          {"signaled", failure.state.signaled},
          {"code", failure.state.code},
          {"out_of_memory", failure.out_of_memory},
          {"last_lines", std::move(lines)}};
}

JobFailure failure_from(const Json& object) {
  const Fields fields(object);
  JobFailure failure;
  const std::string kind = fields.text("kind", 16);
  if (kind != "node" && kind != "worker") throw ProtocolError("a failure of an unknown kind");
  failure.kind = kind == "node" ? JobFailure::Kind::kNode : JobFailure::Kind::kWorker;
  failure.generation = static_cast<int>(fields.integer("generation", 0, kMaxGenerations));
  failure.node_rank = static_cast<int>(fields.integer("node_rank", 0, kMaxNodes - 1));
  failure.host = fields.word("host", kMaxName);
  failure.time_us = fields.integer("time_us", 0, INT64_MAX);
  // Invalid bytes were replaced by three valid ones each.
  failure.message = fields.text("message", 3 * kMaxMessage);
  failure.error_file = fields.text("error_file", 3 * kMaxMessage);
  failure.rank = static_cast<int>(fields.integer("rank", 0, INT32_MAX));
  failure.local_rank = static_cast<int>(fields.integer("local_rank", 0, kMaxRanks));
  failure.pid = fields.integer("pid", 0, kMaxPid);
  failure.state.signaled = fields.boolean("signaled");
  failure.state.code = static_cast<int>(fields.integer("code", 0, 255));
  failure.out_of_memory = fields.boolean("out_of_memory");
  for (const Json& line : fields.array("last_lines", kMaxLines)) {
    if (!line.is_string() || line.text().size() > 3 * kMaxLine) {
      throw ProtocolError("a line of standard error that is no text or too long");
    }
    failure.last_lines.push_back(line.get<std::string>());
  }
  return failure;
}

Json to_json(const JobOutcome& outcome) {
  Json result{{"kind", static_cast<int>(outcome.kind)},
              {"reason", cut(outcome.reason, kMaxReason)},
              {"signal", outcome.signal},
              {"restart_count", outcome.restart_count}};
  if (outcome.failure) result["failure"] = to_json(*outcome.failure);
  return result;
}

JobOutcome outcome_from(const Json& object) {
  const Fields fields(object);
  JobOutcome outcome;
  const auto last = static_cast<int64_t>(JobOutcome::Kind::kRendezvousFailed);
  outcome.kind = static_cast<JobOutcome::Kind>(fields.integer("kind", 0, last));
  outcome.reason = fields.text("reason", 3 * kMaxReason);
  outcome.signal = static_cast<int>(fields.integer("signal", 0, 127));
  outcome.restart_count = static_cast<int>(fields.integer("restart_count", 0, kMaxGenerations));
  if (fields.has("failure")) outcome.failure = failure_from(fields.at("failure"));
  return outcome;
}

}  // namespace lockstep::launcher::wire
