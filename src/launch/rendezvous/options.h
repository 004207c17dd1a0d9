#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::launcher {

// Everything that decides how launchers come together, in one place.
struct RendezvousOptions {
  // The job's name. A launcher of another job is refused, with both names.
  std::string run_id = "none";
  // What all launchers of the job know and nobody else does. It is never sent.
  std::string token;
  // Where token is "": the launcher that hosts the coordinator makes one, and writes it to the
  // files of these names, see base/key_file.h. The others read the first.
  std::vector<std::string> key_names;
  // Where the coordinator is: a name or an address as the user gave it, never looked
  // up backwards. Port 0: for the launcher that hosts it, any free one.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  std::string host_option = "--master-addr";  // where the user gave it

  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;  // of the whole job

  // Until min_nodes have come, and for a launcher until it has reached the coordinator.
  std::chrono::milliseconds join_timeout{600'000};
  // How much longer to wait for max_nodes once min_nodes are there; also how long a
  // launcher that comes late waits for others before the job restarts with it.
  std::chrono::milliseconds last_call_timeout{30'000};

  // Both sides speak this often. One that was not heard for heartbeat_timeout is dead,
  // so that everybody knows within 2 s. Both come from the coordinator. set_heartbeat_timeout()
  // keeps what follows in proportion.
  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds heartbeat_timeout{1500};
  // A launcher that has lost the coordinator kills its workers when heartbeat_timeout
  // is over; they count as gone this much later.
  std::chrono::milliseconds lease_margin{200};
  // Failures that arrive this long after the first one of a generation may turn out
  // to be its root cause. Longer than heartbeat_timeout: a dead node is noticed late.
  std::chrono::milliseconds settle_time{2000};

  // When a job in which nobody moves is told to hang.
  std::chrono::milliseconds stall_timeout{30'000};

  // Strangers are dropped when they have not proven within this time that they know
  // the token; where there are max_strangers more than the job has nodes, or as many as the
  // limit of open files allows, the oldest goes after a tenth of it, and the next ones wait for
  // that.
  std::chrono::milliseconds stranger_timeout{5000};
  int max_strangers = 1024;
  // How long a launcher tries again where somebody answers who does not prove to be of this
  // job: a stranger may have sat on the port before the coordinator.
  std::chrono::milliseconds unproven_patience{10'000};

  void set_heartbeat_timeout(std::chrono::milliseconds timeout) {
    heartbeat_timeout = timeout;
    heartbeat_interval = timeout / 3;
    settle_time = timeout + heartbeat_interval;
  }
};

}  // namespace lockstep::launcher
