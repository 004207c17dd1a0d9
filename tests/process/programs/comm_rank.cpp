// A rank that process tests start and kill.
//
//   comm_rank SCENARIO BACKEND RANK SIZE RENDEZVOUS [HOST]
//
// RENDEZVOUS: file:PATH, tcp:PORT of this machine, or on rank 0 tcp:0, which prints
// "port PORT". HOST: what the rank takes for its machine. A CommError prints
// "failed RANK TEXT" and ends with status 3; a ConfigError ends with status 2.

#include <fmt/format.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "base/network.h"
#include "comm/communicator_impl.h"

namespace {

using lockstep::Communicator;

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

// All-reduces until something breaks.
void loop(Communicator& group) {
  for (int step = 0;; ++step) {
    at::Tensor tensor = torch::full({1000}, group.rank() + 1.0);
    group.all_reduce(tensor, lockstep::ReduceOp::kMean).wait();
    if (step == 3) {
      say("running");
    }
  }
}

// Rank 0 waits for a word of rank 1, which never speaks and waits for its own input.
void silence(Communicator& group) {
  group.barrier();
  say("running");
  if (group.rank() == 0) {
    at::Tensor tensor = torch::empty({1});
    group.recv(tensor, 1).wait();
  } else {
    std::string line;
    std::getline(std::cin, line);
  }
}

// Ranks 2 and 0, in this order, go on without rank 1.
void subgroup(Communicator& group) {
  auto part = group.subgroup({2, 0});
  group.barrier();
  say("running");
  if (part) {
    loop(*part);
  }
  std::string line;
  std::getline(std::cin, line);
}

// Rank 0 leaves; the others go on.
void leave(Communicator& group) {
  group.barrier();
  say("running");
  if (group.rank() != 0) {
    at::Tensor tensor = torch::ones({1});
    for (;;) {
      group.all_reduce(tensor).wait();
    }
  }
}

lockstep::RankMap map_from(char** arguments) {
  lockstep::RankMap map;
  map.launcher = lockstep::Launcher::kExplicit;
  map.rank = std::stoi(arguments[0]);
  map.world_size = std::stoi(arguments[1]);
  const std::string rendezvous = arguments[2];
  if (rendezvous.starts_with("file:")) {
    map.rendezvous.kind = lockstep::Rendezvous::Kind::kFile;
    map.rendezvous.path = rendezvous.substr(5);
    return map;
  }
  map.rendezvous.kind = lockstep::Rendezvous::Kind::kTcp;
  map.rendezvous.address = "127.0.0.1";
  map.rendezvous.port = static_cast<uint16_t>(std::stoi(rendezvous.substr(4)));
  if (map.rendezvous.port == 0) {
    auto listener = lockstep::base::listen_on_free_port("127.0.0.1");
    map.rendezvous.port = listener.port;
    map.rendezvous.listen_fd = listener.fd.release();
    say(fmt::format("port {}", map.rendezvous.port));
  }
  return map;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    return 64;
  }
  const std::string scenario = argv[1];
  lockstep::CommunicatorOptions options;
  options.backend = argv[2];
  options.timeout = std::chrono::minutes(2);
  options.connect_timeout = std::chrono::seconds(60);
  options.device_index = options.backend == "nccl" ? 0 : -1;
  try {
    Communicator group = lockstep::comm::connect_job(map_from(argv + 3), options, argc > 6 ? argv[6] : "");
    say("connected " + group.backend());
    if (scenario == "loop") {
      loop(group);
    } else if (scenario == "silence") {
      silence(group);
    } else if (scenario == "subgroup") {
      subgroup(group);
    } else if (scenario == "leave") {
      leave(group);
    }
  } catch (const lockstep::CommError& error) {
    say(fmt::format("failed {} {}", error.failed_rank().value_or(-1), error.what()));
    return 3;
  } catch (const lockstep::ConfigError& error) {
    say(error.what());
    return 2;
  }
  return 0;
}
