#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::launcher {

// The settings by which the launchers of a job find each other and stay in contact.
struct RendezvousOptions {
  // The job's name. A launcher of another job is refused, with both names.
  std::string run_id = "none";
  // The secret of the job's launchers. It is never sent.
  std::string token;
  // If token is "": the launcher that hosts the coordinator makes one and writes it to the key
  // files of these names; the others read the first of them.
  std::vector<std::string> key_names;
  // Where the coordinator is: a name or an address as the user gave it; there is no reverse
  // lookup. Port 0: the launcher that hosts it takes any free port.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  std::string host_option = "--master-addr";  // the flag or variable that set it

  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;  // of the whole job

  // How long the coordinator waits for min_nodes, and a launcher tries to reach it.
  std::chrono::milliseconds join_timeout{600'000};
  // How much longer to wait for max_nodes once min_nodes have joined; also how long a
  // launcher that joins late waits for others before the job restarts with it.
  std::chrono::milliseconds last_call_timeout{30'000};

  // Both sides send a heartbeat this often. A peer without one for heartbeat_timeout is dead,
  // so that all launchers know within 2 s. The coordinator's values apply to all.
  // set_heartbeat_timeout() keeps the following times in proportion.
  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds heartbeat_timeout{1500};
  // A launcher that lost the coordinator kills its workers when heartbeat_timeout has passed;
  // the coordinator counts them as ended this much later.
  std::chrono::milliseconds lease_margin{200};
  // A failure that is reported within this time after the first one of a generation may still
  // be its root cause. Longer than heartbeat_timeout: a dead node is noticed late.
  std::chrono::milliseconds root_cause_window{2000};

  // How long no rank may progress until the job is reported as stalled.
  std::chrono::milliseconds stall_timeout{30'000};

  // A stranger is a connection that has not proven yet that it knows the token. It is dropped
  // after this time. If there are max_strangers more than the job has nodes, or as many as the
  // limit of open files allows, the oldest is dropped after a tenth of it, and new connections
  // wait for that.
  std::chrono::milliseconds stranger_timeout{5000};
  int max_strangers = 1024;
  // How long a launcher retries when the answering side does not prove to be of this job:
  // another program may have occupied the port before the coordinator.
  std::chrono::milliseconds unproven_patience{10'000};

  void set_heartbeat_timeout(std::chrono::milliseconds timeout) {
    heartbeat_timeout = timeout;
    heartbeat_interval = timeout / 3;
    root_cause_window = timeout + heartbeat_interval;
  }
};

}  // namespace lockstep::launcher
