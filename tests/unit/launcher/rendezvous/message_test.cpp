#include "launcher/rendezvous/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::launcher {
namespace {

using testing::HasSubstr;
using wire::Message;

std::string body_of(const std::string& frame) { return frame.substr(kFrameHeaderBytes); }

template <typename T>
T round_trip(const T& message) {
  return std::get<T>(wire::decode(body_of(wire::encode(message))));
}

void expect_refused(const std::string& body, const std::string& why) {
  try {
    wire::decode(body);
    ADD_FAILURE() << "taken: " << body;
  } catch (const ProtocolError& error) {
    EXPECT_THAT(error.what(), HasSubstr(why)) << body;
  }
}

TEST(FrameTest, ComesOutWholeHoweverItIsCut) {
  const std::string bytes = encode_frame("first") + encode_frame("") + encode_frame(std::string(1000, 'x'));
  for (const size_t step : {size_t{1}, size_t{3}, size_t{7}, size_t{64}, bytes.size()}) {
    FrameReader reader(1000);
    std::vector<std::string> bodies;
    for (size_t i = 0; i < bytes.size(); i += step) {
      reader.feed(bytes.substr(i, step));
      while (const auto body = reader.next()) bodies.push_back(*body);
    }
    EXPECT_THAT(bodies, testing::ElementsAre("first", "", std::string(1000, 'x')));
  }
}

TEST(FrameTest, RefusesAtTheFirstWrongByte) {
  for (const std::string& bytes : {std::string("G"), std::string("LX"), std::string("LSR\x02")}) {
    FrameReader reader(100);
    reader.feed(bytes);
    EXPECT_THROW(reader.next(), ProtocolError) << bytes;
  }
  FrameReader reader(100);
  reader.feed(encode_frame(std::string(101, ' ')).substr(0, kFrameHeaderBytes));
  EXPECT_THROW(reader.next(), ProtocolError);
}

TEST(FrameTest, NamesTheOtherVersion) {
  FrameReader reader(100);
  reader.feed("LSR\x07");
  try {
    reader.next();
    FAIL();
  } catch (const ProtocolError& error) {
    EXPECT_THAT(error.what(), HasSubstr("version 7 of the rendezvous protocol, this is version " +
                                        std::to_string(kWireVersion)));
  }
}

TEST(TokenTest, ProvesKnowledgeOfTheTokenForOneSideAndOneConnection) {
  const base::JobToken token("secret"), other("Secret");
  const base::Nonce a = base::make_nonce(), b = base::make_nonce();
  const base::Proof proof = token.prove(base::JobToken::Side::kMember, a, b);
  EXPECT_TRUE(token.verify(proof, base::JobToken::Side::kMember, a, b));
  EXPECT_FALSE(other.verify(proof, base::JobToken::Side::kMember, a, b));
  EXPECT_FALSE(token.verify(proof, base::JobToken::Side::kCoordinator, a, b));  // no reflection
  EXPECT_FALSE(token.verify(proof, base::JobToken::Side::kMember, b, a));
  EXPECT_FALSE(token.verify(proof, base::JobToken::Side::kMember, a, base::make_nonce()));  // no replay
  EXPECT_NE(base::make_token(), base::make_token());
  EXPECT_EQ(base::make_token().size(), 64u);
}

TEST(WireTest, MessagesSurvive) {
  const wire::Join join = round_trip(wire::Join{
      "job \"7\"", 2, 4, 3, std::chrono::seconds(9), {{3, "gpu07", "10.0.0.7", 8, 4711}, "abc", true}});
  EXPECT_EQ(join.run_id, "job \"7\"");
  EXPECT_EQ(join.min_nodes, 2);
  EXPECT_EQ(join.max_nodes, 4);
  EXPECT_EQ(join.max_restarts, 3);
  EXPECT_EQ(join.candidate.node.node_rank, 3);
  EXPECT_EQ(join.candidate.node.host, "gpu07");
  EXPECT_EQ(join.candidate.node.local_world_size, 8);
  EXPECT_EQ(join.candidate.node.pid, 4711);
  EXPECT_TRUE(join.candidate.hosts_coordinator);
  EXPECT_FALSE(round_trip(wire::Join{}).candidate.node.node_rank);
  EXPECT_EQ(round_trip(wire::Heartbeat{77, 5}).sequence, 77);
  EXPECT_EQ(round_trip(wire::Heartbeat{77, 5}).time_us, 5);
  EXPECT_EQ(round_trip(wire::StorePort{2, 29500, "why"}).port, 29500);
  EXPECT_EQ(round_trip(wire::Start{4, 5}).node_rank, 5);
  EXPECT_EQ(round_trip(wire::Stop{4, "reason"}).reason, "reason");
  EXPECT_EQ(round_trip(wire::Leave{15}).signal, 15);
  EXPECT_EQ(round_trip(wire::Stopped{4, ""}).stuck, "");
  EXPECT_EQ(round_trip(wire::Stopped{4, "rank 1"}).stuck, "rank 1");
  EXPECT_EQ(round_trip(wire::Note{"a spare"}).text, "a spare");
  const base::Nonce nonce = base::make_nonce();
  EXPECT_EQ(round_trip(wire::Challenge{nonce}).nonce, nonce);
}

TEST(WireTest, ProgressSurvives) {
  RankView worker;
  worker.ended = true;
  worker.progress = {.reports = true,
                     .phase = base::Phase::kBackward,
                     .step = -1,
                     .collectives_started = UINT64_MAX,
                     .collectives_finished = 8,
                     .operation = "\xff\xfe no text at all",
                     .idle_ns = 31'000'000'000};
  const wire::Progress read = round_trip(wire::Progress{4, {worker, RankView{}}});
  EXPECT_EQ(read.generation, 4);
  ASSERT_EQ(read.workers.size(), 2u);
  EXPECT_TRUE(read.workers[0].ended);
  EXPECT_EQ(read.workers[0].progress.phase, base::Phase::kBackward);
  EXPECT_EQ(read.workers[0].progress.step, -1);
  EXPECT_EQ(read.workers[0].progress.collectives_started, static_cast<uint64_t>(INT64_MAX));
  EXPECT_EQ(read.workers[0].progress.idle_ns, worker.progress.idle_ns);
  EXPECT_FALSE(read.workers[1].progress.reports);
  const std::vector<RankView> many(1024, worker);
  EXPECT_LT(wire::encode(wire::Progress{0, many}).size(), kMaxMemberBytes);

  Stall stall;
  stall.report = std::string(100'000, 'x');
  stall.missing.assign(10'000, 7);
  const wire::Stalled told = round_trip(wire::Stalled{4, stall});
  EXPECT_EQ(told.stall.missing.size(), 256u);
  EXPECT_EQ(told.stall.report.size(), 16384u);
}

TEST(WireTest, MapsSurvive) {
  Generation map;
  map.number = 3;
  map.restart_count = 2;
  map.master_addr = "fe80::1";
  map.master_port = 29500;
  map.secret = base::make_token();
  map.nodes = {{0, "a", "10.0.0.1", 4, 1}, {1, "b", "", 2, 0}};
  const Generation read = round_trip(wire::GenerationMap{map}).generation;
  EXPECT_EQ(read.number, 3);
  EXPECT_EQ(read.restart_count, 2);
  EXPECT_EQ(read.master_addr, "fe80::1");
  EXPECT_EQ(read.secret, map.secret);
  EXPECT_EQ(read.world_size(), 6);
  EXPECT_EQ(read.nodes[1].host, "b");
  EXPECT_EQ(read.nodes[1].address, "");
  EXPECT_EQ(read.nodes[1].node_rank, 1);
  EXPECT_EQ(read.nodes[0].pid, 1);
}

TEST(WireTest, AMapOfFourThousandNodesFits) {
  Generation map;
  map.master_addr = "x";
  map.master_port = 1;
  map.secret = base::make_token();
  for (int i = 0; i < 4000; ++i) {
    map.nodes.push_back({i, "compute-node-" + std::to_string(i) + ".cluster.example.org",
                         "fd00:1234:5678:9abc::" + std::to_string(i), 8, 4'000'000});
  }
  EXPECT_LT(wire::encode(wire::GenerationMap{map}).size(), kMaxCoordinatorBytes);
  EXPECT_EQ(round_trip(wire::GenerationMap{map}).generation.nodes.size(), 4000u);
}

TEST(WireTest, OutcomesSurvive) {
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kWorkerFailed;
  outcome.reason = "because";
  outcome.restart_count = 1;
  outcome.failure.emplace();
  outcome.failure->state = {.signaled = true, .code = 9};
  outcome.failure->out_of_memory = true;
  outcome.failure->last_lines = {"one", "two"};
  outcome.failure->time_us = 1'700'000'000'000'000;
  const JobOutcome read = round_trip(wire::Finish{outcome}).outcome;
  EXPECT_EQ(read.status(), 137);
  EXPECT_EQ(read.reason, "because");
  EXPECT_TRUE(read.failure->out_of_memory);
  EXPECT_EQ(read.failure->last_lines, outcome.failure->last_lines);
  EXPECT_EQ(read.failure->time_us, outcome.failure->time_us);
}

TEST(WireTest, AnythingThatAWorkerPrintsFits) {
  for (const char byte : {'\x01', '\xff', '"', 'x'}) {
    JobFailure failure;
    failure.message = std::string(100'000, byte);
    failure.last_lines.assign(1000, std::string(100'000, byte));
    const std::string frame = wire::encode(wire::WorkerFailed{failure});
    EXPECT_LT(frame.size(), kMaxMemberBytes);
    const JobFailure read = std::get<wire::WorkerFailed>(wire::decode(body_of(frame))).failure;
    EXPECT_EQ(read.last_lines.size(), wire::kMaxLines);
  }
}

TEST(WireTest, RefusesWhatMakesNoSense) {
  expect_refused("", "not JSON");
  expect_refused("{", "not JSON");
  expect_refused("[]", "not a JSON object");
  expect_refused("{}", "\"type\" is missing");
  expect_refused(R"({"type":7})", "\"type\" is not text");
  expect_refused(R"({"type":"sing"})", "unknown type");
  expect_refused(R"({"type":"stopped"})", "\"generation\" is missing");
  expect_refused(R"({"type":"stopped","generation":"0"})", "is not an integer");
  expect_refused(R"({"type":"stopped","generation":0.5})", "is not an integer");
  expect_refused(R"({"type":"stopped","generation":-1})", "out of range");
  expect_refused(R"({"type":"stopped","generation":18446744073709551615})", "out of range");
  expect_refused(R"({"type":"leave","signal":128})", "out of range");
  for (const char* rank : {"18446744073709551615", "2147483648", "-1", "0.5", "1e300"}) {
    expect_refused(
        R"({"type":"stalled","generation":0,"stall":{"report":"","missing":[)" + std::string(rank) + "]}}",
        "a missing rank");
  }
  expect_refused(R"({"type":"challenge","nonce":"zz"})", "hexadecimal");
  expect_refused(R"({"type":"store_port","generation":0,"port":65536,"error":""})", "out of range");
  expect_refused("{\"type\":\"halt\",\"generation\":0,\"reason\":\"\xff\"}", "not JSON");
  expect_refused(R"({"type":"finish","outcome":{"kind":6,"reason":"","signal":0,"restart_count":0}})",
                 "out of range");
}

TEST(WireTest, RefusesNodesThatCouldNotBe) {
  const auto join = [](const std::string& field, const nlohmann::json& value) {
    nlohmann::json node{{"host", "a"}, {"address", "b"}, {"local_world_size", 1}, {"pid", 1}, {"role", "r"}};
    node[field] = value;
    const nlohmann::json message{
        {"type", "join"}, {"run_id", ""},   {"instance", ""},    {"hosts_coordinator", false}, {"node", node},
        {"min_nodes", 1}, {"max_nodes", 1}, {"max_restarts", 0}, {"stall_timeout_ms", 0}};
    return message.dump();
  };
  EXPECT_NO_THROW(wire::decode(join("host", "fine")));
  expect_refused(join("local_world_size", 0), "out of range");
  expect_refused(join("node_rank", -1), "out of range");
  expect_refused(join("stop_timeout_ms", INT64_MAX), "out of range");
  expect_refused(join("host", std::string(256, 'x')), "has 256 bytes");
  expect_refused(join("host", "a\nb"), "control characters");
  expect_refused(join("pid", nullptr), "is not an integer");
}

TEST(WireTest, RefusesMapsThatContradictThemselves) {
  const auto map = [](int nodes, const std::string& table, int port = 1) {
    const nlohmann::json inner{{"generation", 0},
                               {"restart_count", 0},
                               {"master_addr", "x"},
                               {"master_port", port},
                               {"secret", std::string(64, 'a')},
                               {"nodes", nodes}};
    return nlohmann::json{{"type", "generation_map"}, {"map", inner}}.dump() + "\n" + table;
  };
  const std::string two = "a\t10.0.0.1\tr\t4\t1\nb\t\tr\t4\t2\n";
  EXPECT_NO_THROW(wire::decode(map(2, two)));
  expect_refused(map(1, two), "more nodes than it announces");
  expect_refused(map(3, two), "fewer nodes than it announces");
  expect_refused(map(2, ""), "fewer nodes than it announces");
  expect_refused(map(1 << 20, two), "out of range");
  expect_refused(map(1, "a\tb\tr\t1\tx\n"), "malformed or out of range");
  expect_refused(map(1, "a\tb\tr\t0\t1\n"), "out of range");
  expect_refused(map(1, "a\tb\tr\t1 \t1\n"), "malformed or out of range");
  expect_refused(map(1, "a\rb\tb\tr\t1\t1\n"), "malformed name");
  expect_refused(map(1, std::string(300, 'a') + "\tb\tr\t1\t1\n"), "malformed name");
  expect_refused(map(2, two, 0), "out of range");
  expect_refused("{\"type\":\"stopped\",\"generation\":0}\nmore", "extra bytes after it");
}

}  // namespace
}  // namespace lockstep::launcher
