#include "launch/rendezvous/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/exit_status.h>

#include <csignal>

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = JobOutcome::Kind;

RendezvousOptions nodes(int min, int max, int max_restarts = 0) {
  RendezvousOptions options;
  options.min_nodes = min;
  options.max_nodes = max;
  options.max_restarts = max_restarts;
  options.join_timeout = seconds(60);
  options.last_call_timeout = seconds(10);
  return options;
}

// A coordinator, its clock, and everything it has ever asked for.
class Job {
 public:
  explicit Job(const RendezvousOptions& options, bool needs_host = false)
      : coordinator_(options, needs_host, now_) {}

  void join(MemberId id, std::optional<int> rank = std::nullopt, bool host = false,
            int local_world_size = 1) {
    Candidate candidate;
    candidate.node.node_rank = rank;
    candidate.node.host = "host" + std::to_string(id);
    candidate.node.address = "10.0.0." + std::to_string(id);
    candidate.node.local_world_size = local_world_size;
    candidate.instance = "instance" + std::to_string(id);
    candidate.hosts_coordinator = host;
    join(id, candidate);
  }
  void join(MemberId id, const Candidate& candidate) {
    coordinator_.join(now_, id, candidate);
    collect();
  }
  void fail(MemberId id, int64_t time_us = 100, int code = 1) {
    JobFailure failure;
    failure.generation = generation();
    failure.rank = static_cast<int>(id);
    failure.time_us = time_us;
    failure.state = {.signaled = false, .code = code};
    coordinator_.worker_failed(now_, id, failure);
    collect();
  }
  void succeed(MemberId id) {
    coordinator_.succeeded(now_, id, generation());
    collect();
  }
  void stopped(MemberId id) {
    coordinator_.stopped(now_, id, generation());
    collect();
  }
  void all_stopped() {
    for (const MemberId id : order()) stopped(id);
  }
  void leave(MemberId id, int signal = SIGTERM) {
    coordinator_.leave(now_, id, signal);
    collect();
  }
  void lose(MemberId id, milliseconds lease = milliseconds(0), int64_t time_us = 100) {
    coordinator_.lost(now_, id, {"the cable is out", time_us, now_ + lease});
    collect();
  }
  void answer_port(MemberId id, int generation, uint16_t port, const std::string& error = "") {
    coordinator_.store_port(now_, id, generation, port, error);
    collect();
  }
  // Lets time pass the way an event loop does: deadlines in between are kept.
  void pass(milliseconds time) {
    const Coordinator::Time end = now_ + time;
    while (const auto deadline = coordinator_.deadline()) {
      if (*deadline > end) break;
      now_ = std::max(now_, *deadline);
      coordinator_.tick(now_);
      collect();
    }
    now_ = end;
  }

  // The generation that was started last, and its members in the order of their ranks.
  int generation() const { return map_ ? map_->number : -1; }
  const Generation& map() const { return *map_; }
  std::vector<MemberId> order() const { return order_; }
  int num_starts() const { return num_starts_; }
  std::vector<Stop> stops;
  std::map<MemberId, std::vector<JobOutcome>> finishes;
  std::map<MemberId, std::string> refused;
  std::vector<ReserveStorePort> port_requests;
  bool answers_port_requests = true;
  const Coordinator& coordinator() const { return coordinator_; }

 private:
  void collect() {
    for (const Action& action : coordinator_.take_actions()) {
      if (const auto* a = std::get_if<Refuse>(&action)) refused[a->to] = a->reason;
      if (const auto* a = std::get_if<Stop>(&action)) stops.push_back(*a);
      if (const auto* a = std::get_if<Finish>(&action)) finishes[a->to].push_back(a->outcome);
      if (const auto* a = std::get_if<ReserveStorePort>(&action)) port_requests.push_back(*a);
      if (const auto* a = std::get_if<Start>(&action)) note_start(*a);
    }
    if (!answers_port_requests) return;
    for (const ReserveStorePort& request : std::exchange(port_requests, {})) {
      answer_port(request.to, request.generation, 29500);
    }
  }
  void note_start(const Start& start) {
    if (start.generation != map_) {
      map_ = start.generation;
      order_.clear();
      ++num_starts_;
    }
    EXPECT_EQ(start.node_rank, static_cast<int>(order_.size()));
    order_.push_back(start.to);
  }

  Coordinator::Time now_;
  Coordinator coordinator_;
  std::shared_ptr<const Generation> map_;
  std::vector<MemberId> order_;
  int num_starts_ = 0;
};

TEST(CoordinatorTest, StartsWhenAllAreThere) {
  Job job(nodes(2, 2));
  job.join(1);
  EXPECT_EQ(job.generation(), -1);
  job.join(2, std::nullopt, false, 3);
  EXPECT_EQ(job.generation(), 0);
  EXPECT_THAT(job.order(), ElementsAre(1, 2));
  EXPECT_EQ(job.map().world_size(), 4);  // unequal nodes are fine
  EXPECT_EQ(job.map().master_addr, "10.0.0.1");
  EXPECT_EQ(job.map().master_port, 29500);
  EXPECT_EQ(job.map().nodes[1].node_rank, 1);
}

TEST(CoordinatorTest, LastCallBetweenMinAndMax) {
  Job job(nodes(2, 4));
  job.join(1);
  job.join(2);
  job.pass(seconds(9));
  EXPECT_EQ(job.generation(), -1);
  job.join(3);
  job.pass(milliseconds(999));
  EXPECT_EQ(job.generation(), -1);
  job.pass(milliseconds(1));
  EXPECT_THAT(job.order(), ElementsAre(1, 2, 3));
}

TEST(CoordinatorTest, LastCallEndsWhenTooFewAreLeft) {
  Job job(nodes(2, 4));
  job.join(1);
  job.join(2);
  job.pass(seconds(5));
  job.lose(2);
  job.pass(seconds(20));
  EXPECT_EQ(job.generation(), -1);
  job.join(3);
  job.pass(seconds(9));
  EXPECT_EQ(job.generation(), -1);
  job.pass(seconds(1));
  EXPECT_THAT(job.order(), ElementsAre(1, 3));
}

TEST(CoordinatorTest, FailsWhenTooFewCome) {
  Job job(nodes(3, 3));
  job.join(1);
  job.join(2);
  job.pass(seconds(60));
  ASSERT_EQ(job.finishes[1].size(), 1u);
  EXPECT_EQ(job.finishes[1][0].kind, Kind::kRendezvousFailed);
  EXPECT_EQ(job.finishes[1][0].status(), kExitRendezvous);
  EXPECT_THAT(job.finishes[1][0].reason,
              HasSubstr("2 of at least 3 nodes came within 60 s: host1 (10.0.0.1), host2"));
  ASSERT_EQ(job.finishes[2].size(), 1u);
  job.join(3);
  EXPECT_THAT(job.refused[3], HasSubstr("the job has ended: 2 of at least 3"));
}

TEST(CoordinatorTest, TheHostIsNodeZeroWhereverItComes) {
  Job job(nodes(3, 3));
  job.join(1);
  job.join(2);
  job.join(3, std::nullopt, /*host=*/true);
  EXPECT_THAT(job.order(), ElementsAre(3, 1, 2));
}

TEST(CoordinatorTest, GivenRanksDecideTheOrder) {
  Job job(nodes(3, 3));
  job.join(1, 2, /*host=*/true);
  job.join(2, 0);
  job.join(3, 1);
  EXPECT_THAT(job.order(), ElementsAre(2, 3, 1));
}

TEST(CoordinatorTest, WhoHasNoRankGetsAFreeOne) {
  Job job(nodes(4, 4));
  job.join(1);
  job.join(2, 0);
  job.join(3);
  job.join(4, 2);
  EXPECT_THAT(job.order(), ElementsAre(2, 1, 4, 3));
}

TEST(CoordinatorTest, NothingStartsWithoutTheHost) {
  Job job(nodes(1, 2), /*needs_host=*/true);
  job.join(1);
  job.join(2);
  job.pass(seconds(30));
  EXPECT_EQ(job.generation(), -1);
  job.join(3, std::nullopt, /*host=*/true);
  EXPECT_THAT(job.order(), ElementsAre(3, 1));  // 2 waits as a spare
}

TEST(CoordinatorTest, RefusesDuplicatesAndRanksOutOfRange) {
  Job job(nodes(3, 3));
  job.join(1, 1);
  job.join(2, 1);
  EXPECT_THAT(job.refused[2], HasSubstr("node rank 1 is taken by host1"));
  job.join(3, 3);
  EXPECT_THAT(job.refused[3], HasSubstr("at most 3 nodes"));
  Candidate again;
  again.instance = "instance1";
  job.join(4, again);
  EXPECT_THAT(job.refused[4], HasSubstr("joined already"));
  EXPECT_EQ(job.refused.count(1), 0u);
}

TEST(CoordinatorTest, SucceedsWhenAllHave) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.succeed(1);
  EXPECT_THAT(job.finishes, IsEmpty());
  job.succeed(2);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, OneFailureStopsAllThenFails) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.fail(2, 100, 7);
  ASSERT_EQ(job.stops.size(), 2u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("rank 2 on node 1 (host2) ended with exit code 7"));
  EXPECT_THAT(job.finishes, IsEmpty());
  job.all_stopped();
  const JobOutcome& outcome = job.finishes[1].at(0);
  EXPECT_EQ(outcome.kind, Kind::kWorkerFailed);
  EXPECT_EQ(outcome.status(), 7);
  EXPECT_EQ(outcome.failure->host, "host2");
}

TEST(CoordinatorTest, RestartsOnTheGlobalBudgetAndNoMore) {
  Job job(nodes(2, 2, /*max_restarts=*/2));
  job.join(1);
  job.join(2);
  for (int restart = 1; restart <= 2; ++restart) {
    job.fail(1 + restart % 2);
    job.stopped(1);
    EXPECT_EQ(job.generation(), restart - 1);  // the other one still runs
    job.stopped(2);
    EXPECT_EQ(job.generation(), restart);
    EXPECT_EQ(job.map().restart_count, restart);
    EXPECT_THAT(job.order(), ElementsAre(1, 2));
  }
  job.fail(1);
  job.all_stopped();
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kWorkerFailed);
  EXPECT_EQ(job.finishes[2].at(0).restart_count, 2);
  EXPECT_EQ(job.num_starts(), 3);
}

TEST(CoordinatorTest, SeveralFailuresOfAGenerationCountOnce) {
  Job job(nodes(2, 2, 1));
  job.join(1);
  job.join(2);
  job.fail(1);
  job.fail(2);
  job.all_stopped();
  EXPECT_EQ(job.map().restart_count, 1);
}

TEST(CoordinatorTest, TheEarliestFailureIsTheRootCause) {
  Job job(nodes(3, 3));
  for (const MemberId id : {1, 2, 3}) job.join(id);
  job.fail(1, 500, 1);
  job.pass(milliseconds(100));
  job.fail(3, 200, 3);
  job.pass(seconds(10));
  job.fail(2, 100, 2);  // too late to be believed
  job.all_stopped();
  EXPECT_EQ(job.finishes[1].at(0).status(), 3);
  EXPECT_EQ(job.finishes[1].at(0).failure->node_rank, 2);
}

TEST(CoordinatorTest, NewsOfAnEarlierGenerationIsNone) {
  Job job(nodes(1, 1, 3));
  job.join(1);
  job.fail(1);
  job.stopped(1);
  ASSERT_EQ(job.generation(), 1);
  Coordinator coordinator(job.coordinator());
  JobFailure old;
  old.generation = 0;
  coordinator.worker_failed({}, 1, old);
  coordinator.succeeded({}, 1, 0);
  coordinator.stopped({}, 1, 0);
  EXPECT_THAT(coordinator.take_actions(), IsEmpty());
}

TEST(CoordinatorTest, ALostNodeIsWaitedForUntilItsLeaseIsOver) {
  Job job(nodes(2, 3, 1));
  for (const MemberId id : {1, 2, 3}) job.join(id);
  job.lose(2, milliseconds(1700));
  EXPECT_EQ(job.stops.size(), 2u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("node 1 (host2) is lost: the cable is out"));
  job.stopped(1);
  job.stopped(3);
  job.pass(milliseconds(1699));
  EXPECT_EQ(job.generation(), 0);
  job.pass(milliseconds(1));
  EXPECT_EQ(job.generation(), 1);
  EXPECT_THAT(job.order(), ElementsAre(1, 3));
  EXPECT_EQ(job.map().restart_count, 1);
}

TEST(CoordinatorTest, TooFewLeftEndsTheJobAtOnce) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.lose(2, seconds(2));
  job.stopped(1);
  const JobOutcome& outcome = job.finishes[1].at(0);
  EXPECT_EQ(outcome.kind, Kind::kNodeLost);
  EXPECT_EQ(outcome.status(), kExitNodeLost);
  EXPECT_THAT(outcome.reason, HasSubstr("1 node left of at least 2"));
  EXPECT_EQ(job.finishes.count(2), 0u);
}

TEST(CoordinatorTest, ALostNodeWithoutABudgetEndsTheJob) {
  Job job(nodes(1, 2, 0));
  job.join(1);
  job.join(2);
  job.lose(2, seconds(2));
  job.stopped(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kNodeLost);
}

TEST(CoordinatorTest, ASpareTakesTheLostPlaceAndNobodyMoves) {
  Job job(nodes(3, 3, 1));
  for (const MemberId id : {1, 2, 3, 4}) job.join(id);
  EXPECT_THAT(job.order(), ElementsAre(1, 2, 3));
  job.lose(2);
  job.stopped(1);
  job.stopped(3);
  EXPECT_THAT(job.order(), ElementsAre(1, 4, 3));
}

TEST(CoordinatorTest, ASpareIsToldTheEndToo) {
  Job job(nodes(1, 1));
  job.join(1);
  job.join(2);
  job.succeed(1);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ANodeThatWasLostAfterItsSuccessIsNotMissed) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.succeed(2);
  job.lose(2);
  EXPECT_THAT(job.stops, IsEmpty());
  job.succeed(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ScalesUpAfterTheLastCallAndFree) {
  Job job(nodes(1, 3, 0));
  job.join(1);
  job.pass(seconds(10));
  ASSERT_EQ(job.generation(), 0);
  job.join(2);
  job.pass(seconds(9));
  EXPECT_THAT(job.stops, IsEmpty());
  job.pass(seconds(1));
  ASSERT_EQ(job.stops.size(), 1u);
  EXPECT_EQ(job.stops[0].reason, "1 more node joined");
  job.stopped(1);
  EXPECT_THAT(job.order(), ElementsAre(1, 2));
  EXPECT_EQ(job.map().restart_count, 0);
  job.join(3);  // that is all there is room for: no need to wait
  EXPECT_EQ(job.stops.size(), 3u);
}

TEST(CoordinatorTest, DoesNotScaleUpNearTheEnd) {
  Job job(nodes(2, 3));
  job.join(1);
  job.join(2);
  job.pass(seconds(10));
  job.succeed(1);
  job.join(3);
  job.pass(seconds(100));
  EXPECT_THAT(job.stops, IsEmpty());
  job.succeed(2);
  EXPECT_EQ(job.finishes[3].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ASuccessThatCrossesTheStopIsASuccess) {
  Job job(nodes(1, 2));
  job.join(1);
  job.pass(seconds(10));
  job.join(2);
  ASSERT_EQ(job.stops.size(), 1u);
  job.succeed(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ALeaverIsLetGoWhereEnoughRemain) {
  Job job(nodes(1, 2, 0));
  job.join(1);
  job.join(2);
  job.leave(2, SIGUSR2);
  ASSERT_EQ(job.stops.size(), 2u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("node 1 (host2) was asked to end by SIGUSR2"));
  job.all_stopped();
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
  EXPECT_EQ(job.finishes[2].at(0).status(), 128 + SIGUSR2);
  EXPECT_THAT(job.order(), ElementsAre(1));
  EXPECT_EQ(job.map().restart_count, 0);
  EXPECT_EQ(job.finishes.count(1), 0u);
}

TEST(CoordinatorTest, ALeaverThatIsNeededEndsTheJob) {
  Job job(nodes(2, 2, 3));
  job.join(1);
  job.join(2);
  job.leave(2, SIGINT);
  job.all_stopped();
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kStopped);
  EXPECT_EQ(job.finishes[1].at(0).status(), 128 + SIGINT);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
}

TEST(CoordinatorTest, TheHostTakesTheJobWithIt) {
  Job job(nodes(1, 2, 3));
  job.join(1, std::nullopt, /*host=*/true);
  job.join(2);
  job.leave(1);
  job.all_stopped();
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
}

TEST(CoordinatorTest, LeavingBeforeTheStart) {
  Job elastic(nodes(2, 3));
  elastic.join(1);
  elastic.leave(1);
  EXPECT_EQ(elastic.finishes[1].at(0).kind, Kind::kStopped);
  EXPECT_FALSE(elastic.coordinator().finished());

  Job fixed(nodes(2, 2));
  fixed.join(1);
  fixed.leave(1);
  EXPECT_TRUE(fixed.coordinator().finished());
}

TEST(CoordinatorTest, ASpareThatLeavesDisturbsNobody) {
  Job job(nodes(1, 1));
  job.join(1);
  job.join(2);
  job.leave(2);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
  EXPECT_THAT(job.stops, IsEmpty());
}

TEST(CoordinatorTest, PreemptionEndsTheJobInSpiteOfTheBudget) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.fail(2, 200, kExitCommunication);
  job.fail(1, 100, kExitPreempted);
  job.all_stopped();
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kPreempted);
  EXPECT_EQ(job.finishes[1].at(0).status(), kExitPreempted);
}

TEST(CoordinatorTest, WorkersThatSaveWhenAFailureStopsThemDoNotPreemptTheJob) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.fail(2, 100, 1);
  job.fail(1, 200, kExitPreempted);
  job.all_stopped();
  EXPECT_EQ(job.generation(), 1);
}

TEST(CoordinatorTest, WorkersThatSaveWhenASignalStopsTheJobPreemptIt) {
  Job job(nodes(1, 1, 5));
  job.join(1);
  job.leave(1);
  job.fail(1, 100, kExitPreempted);
  job.stopped(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kPreempted);
}

TEST(CoordinatorTest, NoPortForTheStoreEndsTheJob) {
  Job job(nodes(1, 1));
  job.answers_port_requests = false;
  job.join(1);
  job.answer_port(1, 0, 0, "all are taken");
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kRendezvousFailed);
  EXPECT_THAT(job.finishes[1].at(0).reason, HasSubstr("host1 has no port for the store: all are taken"));
}

TEST(CoordinatorTest, AsksTheNextOneWhenNodeZeroIsLostBeforeTheStart) {
  Job job(nodes(2, 3));
  job.answers_port_requests = false;
  for (const MemberId id : {1, 2, 3}) job.join(id);
  ASSERT_EQ(job.port_requests.size(), 1u);
  EXPECT_EQ(job.port_requests[0].to, 1u);
  job.lose(1);
  ASSERT_EQ(job.port_requests.size(), 2u);
  EXPECT_EQ(job.port_requests[1].to, 2u);
  job.answer_port(1, 0, 1000);
  job.answer_port(2, 0, 2000);
  EXPECT_THAT(job.order(), ElementsAre(2, 3));
  EXPECT_EQ(job.map().master_port, 2000);
  EXPECT_EQ(job.map().master_addr, "10.0.0.2");
}

TEST(CoordinatorTest, OnlyTheLastAnswerOfAPortCounts) {
  Job job(nodes(2, 2));
  job.answers_port_requests = false;
  job.join(1);
  job.join(2);
  job.lose(2);  // back to gathering
  job.join(3);
  ASSERT_EQ(job.port_requests.size(), 2u);
  job.answer_port(1, 0, 1000);
  EXPECT_EQ(job.generation(), -1);
  job.answer_port(1, 0, 1001);
  EXPECT_EQ(job.map().master_port, 1001);
}

TEST(CoordinatorTest, ALostLauncherComesBackUnderItsRank) {
  Job job(nodes(2, 2, 1));
  job.join(1, 0);
  job.join(2, 1);
  job.join(3);  // a spare keeps the job alive
  job.lose(2, seconds(1));
  job.join(4, 1);
  job.stopped(1);
  job.pass(seconds(1));
  EXPECT_THAT(job.order(), ElementsAre(1, 4));
}

}  // namespace
}  // namespace lockstep::launcher
