#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/job_token.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "comm/secure_connection.h"

namespace c10d {
class Store;
}

namespace lockstep::comm {

// Knows which rank of a job died first, whatever backend the job uses.
//
// Every rank holds one TCP connection to rank 0, on which it sends only a goodbye when it leaves.
// The kernel closes the connection of a process that dies, however it dies; rank 0 then reports the
// rank to all others. Each rank notices the loss of rank 0 directly. TCP keep-alive notices a host
// that vanishes after about half a minute.
//
// A rank and rank 0 prove to each other that they know the job's secret; connections that do not
// are dropped. The port is closed when all ranks have come.
//
// Thread-safe. It has a thread.
class Lifeline {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Departure {
    int rank = 0;
    bool died = true;  // false: it closed its group and sent a goodbye
  };

  // Collective over the ranks of the job. Rank 0 listens on `address`, which is numeric, and
  // publishes it in the store. `token` is known to the ranks of this job alone. CommError: rank 0
  // cannot be reached.
  static std::shared_ptr<Lifeline> join(c10d::Store& store, const base::JobToken& token, int rank, int size,
                                        const std::string& address, Milliseconds timeout);

  // Sends the goodbye.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // The first rank that departed; waits for one at most `patience`. A death counts before a
  // goodbye.
  std::optional<Departure> first_departure(Milliseconds patience);

  // Calls `callback` with the first rank that died: from the lifeline's thread, or at once if a
  // rank is dead already. After forget() has returned the callback does not run.
  using Subscription = int;
  Subscription on_death(std::function<void(int rank)> callback);
  void forget(Subscription subscription);

 private:
  class Server;

  Lifeline(int rank, int size);

  void start_server(c10d::Store& store, const base::JobToken& token, const std::string& address);
  void connect_to_server(c10d::Store& store, const base::JobToken& token, Milliseconds timeout);
  void listen_to_server();
  void record(Departure departure);

  const int rank_;
  const int size_;
  base::UniqueFd wake_;                     // readable: the thread has to end
  std::optional<SecureClient> connection_;  // to rank 0; rank 0 itself has the server
  std::unique_ptr<Server> server_;
  std::thread thread_;

  base::Mutex mutex_;
  base::Condition changed_;
  std::optional<int> dead_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<int> left_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<Subscription, std::function<void(int)>> callbacks_ LOCKSTEP_GUARDED_BY(mutex_);
  Subscription next_subscription_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::comm
