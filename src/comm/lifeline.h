#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/job_token.h"
#include "base/unique_fd.h"
#include "comm/secure_connection.h"

namespace c10d {
class Store;
}

namespace lockstep::comm {

// Knows which rank of a job died first, whatever backend the job uses.
//
// Every rank holds one TCP connection to rank 0, and never sends on it but a
// goodbye when it leaves. The kernel closes the connection of a process that dies,
// however it dies; rank 0 then tells all others who it was. A lost rank 0 is seen
// by each of them directly. A host that vanishes without a word is noticed by TCP
// keep-alive after about half a minute.
//
// Rank and rank 0 prove to each other that they know the job's secret; whoever does not is
// forgotten. The port is closed when all ranks have come.
//
// Thread-safe. One thread of its own.
class Lifeline {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Departure {
    int rank = 0;
    bool died = true;  // false: it closed its group and said so
  };

  // Collective over the ranks of the job. Rank 0 listens on `address`, numeric, and
  // publishes it in the store. token: what the ranks of this job alone know. CommError: rank
  // 0 cannot be reached.
  static std::shared_ptr<Lifeline> join(c10d::Store& store, const base::JobToken& token, int rank, int size,
                                        const std::string& address, Milliseconds timeout);

  // Says goodbye.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // The first rank that departed, waiting for one at most `patience`. A death
  // counts before a goodbye.
  std::optional<Departure> first_departure(Milliseconds patience);

  // Calls `callback` with the first rank that died: from the lifeline's own thread,
  // or at once if it is dead already. After forget() has returned it is not running
  // and will not.
  using Subscription = int;
  Subscription on_death(std::function<void(int rank)> callback);
  void forget(Subscription subscription);

  class Server;

 private:
  Lifeline(int rank, int size);

  void start_server(c10d::Store& store, const base::JobToken& token, const std::string& address);
  void connect_to_server(c10d::Store& store, const base::JobToken& token, Milliseconds timeout);
  void listen_to_server();
  void record(Departure departure);

  const int rank_;
  const int size_;
  base::UniqueFd wake_;                     // readable: the thread shall end
  std::optional<SecureClient> connection_;  // to rank 0; on rank 0 itself the server has them all
  std::unique_ptr<Server> server_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<int> dead_;  // protected by mutex_, as all below
  std::optional<int> left_;
  std::map<Subscription, std::function<void(int)>> callbacks_;
  Subscription next_subscription_ = 0;
};

}  // namespace lockstep::comm
