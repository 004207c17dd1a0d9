#include "launch/rendezvous/message.h"

#include <fmt/format.h>

#include <lockstep/json.h>
#include <algorithm>
#include <unordered_map>

#include "launch/rendezvous/fields.h"
#include "launch/rendezvous/frame.h"
#include "launch/rendezvous/job_json.h"
#include "launch/rendezvous/progress_json.h"

namespace lockstep::launcher::wire {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMaxHeartbeatMs = 3'600'000;
constexpr int64_t kMaxTimeUs = INT64_MAX / 4;
constexpr size_t kMaxRunId = 1024;
constexpr size_t kMaxInstance = 64;

Json object_of(const Challenge& m) { return {{"type", "challenge"}, {"nonce", base::to_hex(m.nonce)}}; }
Json object_of(const Hello& m) {
  return {{"type", "hello"}, {"nonce", base::to_hex(m.nonce)}, {"proof", base::to_hex(m.proof)}};
}
Json object_of(const Welcome& m) { return {{"type", "welcome"}, {"proof", base::to_hex(m.proof)}}; }
Json object_of(const Join& m) {
  return {{"type", "join"},
          {"run_id", cut(m.run_id, kMaxRunId)},
          {"min_nodes", m.min_nodes},
          {"max_nodes", m.max_nodes},
          {"max_restarts", m.max_restarts},
          {"stall_timeout_ms", m.stall_timeout.count()},
          {"instance", m.candidate.instance},
          {"hosts_coordinator", m.candidate.hosts_coordinator},
          {"node", to_json(m.candidate.node)}};
}
Json object_of(const Joined& m) {
  return {{"type", "joined"},
          {"heartbeat_interval_ms", m.heartbeat_interval.count()},
          {"heartbeat_timeout_ms", m.heartbeat_timeout.count()},
          {"pulse_id", m.pulse_id}};
}
Json object_of(const Refused& m) { return {{"type", "refused"}, {"reason", cut(m.reason, kMaxReason)}}; }
Json object_of(const Heartbeat& m) {
  return {{"type", "heartbeat"}, {"sequence", m.sequence}, {"time_us", m.time_us}};
}
Json object_of(const ReservePort& m) { return {{"type", "reserve_port"}, {"generation", m.generation}}; }
Json object_of(const StorePort& m) {
  return {{"type", "store_port"},
          {"generation", m.generation},
          {"port", m.port},
          {"error", cut(m.error, kMaxReason)}};
}
Json object_of(const Map& m) { return {{"type", "map"}, {"map", to_json(m.generation)}}; }
Json object_of(const Begin& m) {
  return {{"type", "begin"}, {"generation", m.generation}, {"node_rank", m.node_rank}};
}
Json object_of(const WorkerFailed& m) { return {{"type", "worker_failed"}, {"failure", to_json(m.failure)}}; }
Json object_of(const Succeeded& m) { return {{"type", "succeeded"}, {"generation", m.generation}}; }
Json object_of(const Halt& m) {
  return {{"type", "halt"}, {"generation", m.generation}, {"reason", cut(m.reason, kMaxReason)}};
}
Json object_of(const Stopped& m) {
  Json object{{"type", "stopped"}, {"generation", m.generation}};
  if (!m.stuck.empty()) object["stuck"] = cut(m.stuck, kMaxReason);
  return object;
}
Json object_of(const Leave& m) { return {{"type", "leave"}, {"signal", m.signal}}; }
Json object_of(const Progress& m) {
  return {{"type", "progress"}, {"generation", m.generation}, {"workers", to_json(m.workers)}};
}
Json object_of(const Note& m) { return {{"type", "note"}, {"text", cut(m.text, kMaxReason)}}; }
Json object_of(const Stalled& m) {
  return {{"type", "stalled"}, {"generation", m.generation}, {"stall", to_json(m.stall)}};
}
Json object_of(const Over& m) { return {{"type", "over"}, {"outcome", to_json(m.outcome)}}; }

int generation_of(const Fields& fields) {
  return static_cast<int>(fields.integer("generation", 0, kMaxGenerations));
}

Message join_from(const Fields& fields) {
  Join join;
  join.run_id = fields.text("run_id", kMaxRunId);
  // Any number: one that makes no sense is not the coordinator's either.
  join.min_nodes = static_cast<int>(fields.integer("min_nodes", 0, INT32_MAX));
  join.max_nodes = static_cast<int>(fields.integer("max_nodes", 0, INT32_MAX));
  join.max_restarts = static_cast<int>(fields.integer("max_restarts", 0, INT32_MAX));
  join.stall_timeout = milliseconds(fields.integer("stall_timeout_ms", 0, INT64_MAX));
  join.candidate.instance = fields.word("instance", kMaxInstance);
  join.candidate.hosts_coordinator = fields.boolean("hosts_coordinator");
  join.candidate.node = node_from(fields.at("node"));
  return join;
}

Message joined_from(const Fields& fields) {
  return Joined{milliseconds(fields.integer("heartbeat_interval_ms", 1, kMaxHeartbeatMs)),
                milliseconds(fields.integer("heartbeat_timeout_ms", 1, kMaxHeartbeatMs)),
                static_cast<MemberId>(fields.integer("pulse_id", 0, INT64_MAX))};
}

Message store_port_from(const Fields& fields) {
  return StorePort{generation_of(fields), static_cast<uint16_t>(fields.integer("port", 0, UINT16_MAX)),
                   fields.text("error", 3 * kMaxReason)};
}

using Reader = Message (*)(const Fields&);

const std::unordered_map<std::string_view, Reader>& readers() {
  static const std::unordered_map<std::string_view, Reader> readers{
      {"challenge", [](const Fields& f) -> Message { return Challenge{f.bytes("nonce")}; }},
      {"hello",
       [](const Fields& f) -> Message {
         return Hello{f.bytes("nonce"), f.bytes("proof")};
       }},
      {"welcome", [](const Fields& f) -> Message { return Welcome{f.bytes("proof")}; }},
      {"join", join_from},
      {"joined", joined_from},
      {"refused", [](const Fields& f) -> Message { return Refused{f.text("reason", 3 * kMaxReason)}; }},
      {"heartbeat",
       [](const Fields& f) -> Message {
         return Heartbeat{f.integer("sequence", 0, INT64_MAX), f.integer("time_us", 0, kMaxTimeUs)};
       }},
      {"reserve_port", [](const Fields& f) -> Message { return ReservePort{generation_of(f)}; }},
      {"store_port", store_port_from},
      {"begin",
       [](const Fields& f) -> Message {
         return Begin{generation_of(f), static_cast<int>(f.integer("node_rank", 0, kMaxNodes - 1))};
       }},
      {"worker_failed",
       [](const Fields& f) -> Message { return WorkerFailed{failure_from(f.at("failure"))}; }},
      {"succeeded", [](const Fields& f) -> Message { return Succeeded{generation_of(f)}; }},
      {"halt",
       [](const Fields& f) -> Message {
         return Halt{generation_of(f), f.text("reason", 3 * kMaxReason)};
       }},
      {"stopped",
       [](const Fields& f) -> Message {
         return Stopped{generation_of(f), f.has("stuck") ? f.text("stuck", 3 * kMaxReason) : ""};
       }},
      {"leave",
       [](const Fields& f) -> Message { return Leave{static_cast<int>(f.integer("signal", 0, 127))}; }},
      {"progress",
       [](const Fields& f) -> Message {
         return Progress{generation_of(f), workers_from(f.array("workers", kMaxWorkers))};
       }},
      {"note", [](const Fields& f) -> Message { return Note{f.text("text", 3 * kMaxReason)}; }},
      {"stalled",
       [](const Fields& f) -> Message {
         return Stalled{generation_of(f), stall_from(f.at("stall"))};
       }},
      {"over", [](const Fields& f) -> Message { return Over{outcome_from(f.at("outcome"))}; }},
  };
  return readers;
}

}  // namespace

std::string encode(const Message& message) {
  const Json object = std::visit([](const auto& m) { return object_of(m); }, message);
  std::string body = object.dump(Json::Print{.replace_invalid = true});
  if (const auto* map = std::get_if<Map>(&message)) body += '\n' + node_table(map->generation.nodes);
  return encode_frame(body);
}

Message decode(std::string_view body) {
  const size_t end = std::min(body.find('\n'), body.size());
  const std::string_view rest = body.substr(std::min(end + 1, body.size()));
  const std::optional<Json> object = Json::try_parse(body.substr(0, end));
  if (!object) throw ProtocolError("a message that is no JSON");
  const Fields fields(*object);
  const std::string type = fields.text("type", 32);
  if (type == "map") return Map{generation_from(fields.at("map"), rest)};
  if (!rest.empty()) throw ProtocolError("a message with something behind it");
  const auto reader = readers().find(type);
  if (reader == readers().end()) throw ProtocolError("a message of unknown type");
  return reader->second(fields);
}

}  // namespace lockstep::launcher::wire
