#include "launcher/rendezvous/message.h"

#include <fmt/format.h>
#include <lockstep/json.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/job_token.h"
#include "launcher/job.h"
#include "launcher/stall.h"

namespace lockstep::launcher {

// --- frames ---

namespace {

constexpr std::array<char, 4> kFrameMagic{'L', 'S', 'R', static_cast<char>(kWireVersion)};

uint32_t read_length(std::string_view bytes) {
  uint32_t length = 0;
  for (const char byte : bytes.substr(0, 4)) length = length << 8 | static_cast<uint8_t>(byte);
  return length;
}

void check_magic(std::string_view bytes) {
  const size_t known = std::min(bytes.size(), kFrameMagic.size());
  if (bytes.substr(0, std::min<size_t>(known, 3)) !=
      std::string_view(kFrameMagic.data(), std::min<size_t>(known, 3))) {
    throw ProtocolError("the peer does not speak Lockstep's rendezvous protocol");
  }
  if (known == 4 && bytes[3] != kFrameMagic[3]) {
    throw ProtocolError(
        fmt::format("the peer speaks version {} of the rendezvous protocol, this is version {}",
                    static_cast<uint8_t>(bytes[3]), kWireVersion));
  }
}

}  // namespace

std::string encode_frame(std::string_view body) {
  std::string frame(kFrameMagic.begin(), kFrameMagic.end());
  frame.reserve(kFrameHeaderBytes + body.size());
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(body.size() >> shift & 0xff);
  frame += body;
  return frame;
}

void FrameReader::feed(std::string_view bytes) {
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  } else if (begin_ > (64 << 10)) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_ += bytes;
}

std::optional<std::string> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  check_magic(rest);
  if (rest.size() < kFrameHeaderBytes) return std::nullopt;
  const size_t length = read_length(rest.substr(4));
  if (length > max_bytes_) {
    throw ProtocolError(fmt::format("a frame of {} bytes, {} are allowed", length, max_bytes_));
  }
  if (rest.size() < kFrameHeaderBytes + length) return std::nullopt;
  begin_ += kFrameHeaderBytes + length;
  std::string body(rest.substr(kFrameHeaderBytes, length));
  if (begin_ == buffer_.size()) {
    // An idle connection holds no memory: there may be thousands of them.
    buffer_ = std::string();
    begin_ = 0;
  }
  return body;
}

namespace wire {
namespace {

// Upper bounds of what decode() accepts. Texts may hold three times as many bytes: each
// invalid byte was replaced by a character of three.
constexpr int kMaxNodes = 1 << 16;
constexpr int kMaxGenerations = 1 << 30;
constexpr size_t kMaxName = 255;      // host, address
constexpr size_t kMaxReason = 4096;   // one sentence
constexpr size_t kMaxMessage = 8192;  // of an error file
constexpr size_t kMaxLine = 1000;
constexpr size_t kMaxWorkers = 1024;  // of a node; the progress of more is not sent
constexpr size_t kMaxReport = 16 << 10;
constexpr size_t kMaxMissing = 256;

std::string cut(const std::string& text, size_t max_bytes) { return text.substr(0, max_bytes); }

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// Reads the members of a JSON object that a peer wrote. A member that is missing, of another
// type or out of range is a ProtocolError that names it.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {
    if (!object.is_object()) throw ProtocolError("a message that is not a JSON object");
  }

  const Json& at(const char* name) const {
    const Json* const found = object_.find(name);
    if (found == nullptr) fail(name, "is missing");
    return *found;
  }

  bool has(const char* name) const { return object_.contains(name); }

  int64_t integer(const char* name, int64_t min, int64_t max) const {
    const Json& value = at(name);
    if (!value.is_number_integer()) fail(name, "is not an integer");
    if (!value.is_integer_of<int64_t>()) fail(name, "is out of range");
    const auto number = value.get<int64_t>();
    if (number < min || number > max) fail(name, fmt::format("is out of range: {}", number));
    return number;
  }

  bool boolean(const char* name) const {
    const Json& value = at(name);
    if (!value.is_boolean()) fail(name, "is neither true nor false");
    return value.get<bool>();
  }

  // At most max_bytes long.
  std::string text(const char* name, size_t max_bytes) const {
    const Json& value = at(name);
    if (!value.is_string()) fail(name, "is not text");
    const auto& text = value.text();
    if (text.size() > max_bytes)
      fail(name, fmt::format("has {} bytes, {} are allowed", text.size(), max_bytes));
    return text;
  }

  // A text without control characters.
  std::string word(const char* name, size_t max_bytes) const {
    std::string text = this->text(name, max_bytes);
    if (has_control_characters(text)) fail(name, "has control characters");
    return text;
  }

  std::array<uint8_t, 32> bytes(const char* name) const {
    std::array<uint8_t, 32> bytes;
    if (!base::from_hex(text(name, 2 * bytes.size()), bytes)) fail(name, "is not 64 hexadecimal digits");
    return bytes;
  }

  const Json& array(const char* name, size_t max_size) const {
    const Json& value = at(name);
    if (!value.is_array() || value.size() > max_size)
      fail(name, fmt::format("is not an array of up to {} items", max_size));
    return value;
  }

 private:
  [[noreturn]] static void fail(const char* name, std::string_view why) {
    throw ProtocolError(fmt::format("field \"{}\" {}", name, why));
  }

  const Json& object_;
};

// --- the types of job.h and stall.h; *_from() throws ProtocolError ---

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxPid = INT32_MAX;
constexpr int64_t kMaxStopMs = INT64_MAX / 2'000'000;  // fits a clock that counts nanoseconds

// Removes the text up to the separator from the front and returns it.
std::string_view take(std::string_view& rest, char separator) {
  const size_t end = rest.find(separator);
  if (end == std::string_view::npos) throw ProtocolError("a map with fewer nodes than it announces");
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return word;
}

int64_t take_integer(std::string_view& rest, char separator, int64_t min, int64_t max) {
  const std::string_view word = take(rest, separator);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number < min || number > max) {
    throw ProtocolError("a map with a number that is malformed or out of range");
  }
  return number;
}

std::string_view take_name(std::string_view& rest) {
  const std::string_view name = take(rest, '\t');
  if (!is_name(name)) throw ProtocolError("a map with a malformed name or address");
  return name;
}

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

// Without its nodes, but with their number.
Json to_json(const Generation& generation) {
  return {{"generation", generation.number},       {"restart_count", generation.restart_count},
          {"master_addr", generation.master_addr}, {"master_port", generation.master_port},
          {"secret", generation.secret},           {"nodes", generation.nodes.size()}};
}

// The nodes, one per line: host, address, role, local world size and pid between tabs. They
// are not in the JSON because it takes five times as long to parse, and thousands of
// launchers parse thousands of nodes at the same moment.
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
  if (!table.empty()) throw ProtocolError("a map with more nodes than it announces");
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
      throw ProtocolError("a line of standard error that is not text or too long");
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

constexpr size_t kMaxOperation = 16;
constexpr int64_t kMaxIdleMs = INT64_MAX / 1'000'000;

// A worker can write any number to its progress page.
int64_t bounded(uint64_t number) { return static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX)); }

RankView worker_from(const Json& object) {
  const Fields fields(object);
  RankView worker;
  worker.ended = fields.boolean("ended");
  worker.progress.reports = fields.boolean("reports");
  worker.progress.phase =
      static_cast<base::Phase>(fields.integer("phase", 0, static_cast<int64_t>(UINT32_MAX)));
  worker.progress.step = fields.integer("step", INT64_MIN, INT64_MAX);
  worker.progress.collectives_started = static_cast<uint64_t>(fields.integer("started", 0, INT64_MAX));
  worker.progress.collectives_finished = static_cast<uint64_t>(fields.integer("finished", 0, INT64_MAX));
  worker.progress.operation = fields.text("operation", 3 * kMaxOperation);
  worker.progress.idle_ns = fields.integer("idle_ms", 0, kMaxIdleMs) * 1'000'000;
  return worker;
}

// Without rank and host, which follow from the order.
Json to_json(const std::vector<RankView>& workers) {
  Json array = Json::array();
  if (workers.size() > kMaxWorkers) return array;
  for (const RankView& worker : workers) {
    const base::ProgressWatch::Snapshot& progress = worker.progress;
    array.push_back({{"ended", worker.ended},
                     {"reports", progress.reports},
                     {"phase", static_cast<uint32_t>(progress.phase)},
                     {"step", progress.step},
                     {"started", bounded(progress.collectives_started)},
                     {"finished", bounded(progress.collectives_finished)},
                     {"operation", cut(progress.operation, kMaxOperation)},
                     {"idle_ms", std::clamp<int64_t>(progress.idle_ns / 1'000'000, 0, kMaxIdleMs)}});
  }
  return array;
}

std::vector<RankView> workers_from(const Json& array) {
  std::vector<RankView> workers;
  workers.reserve(array.size());
  for (const Json& object : array) workers.push_back(worker_from(object));
  return workers;
}

// The report and the missing ranks.
Json to_json(const Stall& stall) {
  const size_t count = std::min(stall.missing.size(), kMaxMissing);
  return {{"report", cut(stall.report, kMaxReport)},
          {"missing", std::vector<int>(stall.missing.begin(),
                                       stall.missing.begin() + static_cast<std::ptrdiff_t>(count))}};
}

Stall stall_from(const Json& object) {
  const Fields fields(object);
  Stall stall;
  stall.report = fields.text("report", 3 * kMaxReport);
  for (const Json& rank : fields.array("missing", kMaxMissing)) {
    if (!rank.is_integer_of<int>() || rank.get<int>() < 0) {
      throw ProtocolError("a missing rank that is not a rank");
    }
    stall.missing.push_back(rank.get<int>());
  }
  return stall;
}

using std::chrono::milliseconds;

constexpr int64_t kMaxHeartbeatMs = 3'600'000;
constexpr int64_t kMaxTimeUs = INT64_MAX / 4;
constexpr size_t kMaxRunId = 1024;
constexpr size_t kMaxInstance = 64;

// --- messages ---

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
Json object_of(const ReserveStorePort& m) {
  return {{"type", "reserve_store_port"}, {"generation", m.generation}};
}
Json object_of(const StorePort& m) {
  return {{"type", "store_port"},
          {"generation", m.generation},
          {"port", m.port},
          {"error", cut(m.error, kMaxReason)}};
}
Json object_of(const GenerationMap& m) {
  return {{"type", "generation_map"}, {"map", to_json(m.generation)}};
}
Json object_of(const Start& m) {
  return {{"type", "start"}, {"generation", m.generation}, {"node_rank", m.node_rank}};
}
Json object_of(const WorkerFailed& m) { return {{"type", "worker_failed"}, {"failure", to_json(m.failure)}}; }
Json object_of(const Succeeded& m) { return {{"type", "succeeded"}, {"generation", m.generation}}; }
Json object_of(const Stop& m) {
  return {{"type", "stop"}, {"generation", m.generation}, {"reason", cut(m.reason, kMaxReason)}};
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
Json object_of(const Finish& m) { return {{"type", "finish"}, {"outcome", to_json(m.outcome)}}; }

int generation_of(const Fields& fields) {
  return static_cast<int>(fields.integer("generation", 0, kMaxGenerations));
}

Message join_from(const Fields& fields) {
  Join join;
  join.run_id = fields.text("run_id", kMaxRunId);
  // Any number is accepted here: an implausible one differs from the coordinator's, which
  // then refuses the launcher with a clearer text.
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
      {"reserve_store_port", [](const Fields& f) -> Message { return ReserveStorePort{generation_of(f)}; }},
      {"store_port", store_port_from},
      {"start",
       [](const Fields& f) -> Message {
         return Start{generation_of(f), static_cast<int>(f.integer("node_rank", 0, kMaxNodes - 1))};
       }},
      {"worker_failed",
       [](const Fields& f) -> Message { return WorkerFailed{failure_from(f.at("failure"))}; }},
      {"succeeded", [](const Fields& f) -> Message { return Succeeded{generation_of(f)}; }},
      {"stop",
       [](const Fields& f) -> Message {
         return Stop{generation_of(f), f.text("reason", 3 * kMaxReason)};
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
      {"finish", [](const Fields& f) -> Message { return Finish{outcome_from(f.at("outcome"))}; }},
  };
  return readers;
}

}  // namespace

bool is_name(std::string_view text) { return text.size() <= kMaxName && !has_control_characters(text); }

std::string encode(const Message& message) {
  const Json object = std::visit([](const auto& m) { return object_of(m); }, message);
  std::string body = object.dump(Json::Print{.replace_invalid = true});
  if (const auto* map = std::get_if<GenerationMap>(&message))
    body += '\n' + node_table(map->generation.nodes);
  return encode_frame(body);
}

Message decode(std::string_view body) {
  const size_t end = std::min(body.find('\n'), body.size());
  const std::string_view rest = body.substr(std::min(end + 1, body.size()));
  const std::optional<Json> object = Json::try_parse(body.substr(0, end));
  if (!object) throw ProtocolError("a message that is not JSON");
  const Fields fields(*object);
  const std::string type = fields.text("type", 32);
  if (type == "generation_map") return GenerationMap{generation_from(fields.at("map"), rest)};
  if (!rest.empty()) throw ProtocolError("a message with extra bytes after it");
  const auto reader = readers().find(type);
  if (reader == readers().end()) throw ProtocolError("a message of unknown type");
  return reader->second(fields);
}

}  // namespace wire
}  // namespace lockstep::launcher
