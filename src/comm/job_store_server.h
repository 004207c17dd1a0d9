#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/job_token.h"
#include "base/unique_fd.h"
#include "comm/job_store_wire.h"
#include "comm/secure_connection.h"

namespace lockstep::comm {

// Rank 0's side of the job's store: keys and values, and who waits for them. One thread of
// its own. A rank may have several connections.
class JobStoreServer {
 public:
  using Clock = std::chrono::steady_clock;

  JobStoreServer(base::UniqueFd listener, const base::JobToken& token, int world_size);
  ~JobStoreServer();
  JobStoreServer(const JobStoreServer&) = delete;
  JobStoreServer& operator=(const JobStoreServer&) = delete;

  // For this process: the other end of a connection. Thread-safe.
  base::UniqueFd connect_here();

  // Waits until every rank has proven itself once, and returns those that did not come
  // before the deadline. Thread-safe.
  std::vector<int> wait_for_ranks(Clock::time_point deadline);

 private:
  using Connection = std::shared_ptr<SecurePeer>;

  // A rank that waits for keys.
  struct Waiter {
    std::weak_ptr<SecurePeer> connection;
    std::vector<std::string> keys;
    std::set<std::string> missing;
    bool wants_values = false;
    Clock::time_point deadline;
  };

  void serve();
  int wait_ms() const;
  void accept_some();
  void adopt(base::UniqueFd fd);
  // False: the connection is over.
  bool serve_connection(const Connection& connection);
  void note_rank(int rank);
  void drop_late_strangers();
  void answer(const Connection& connection, const std::string& request);
  std::string answer_of(const Connection& connection, const std::string& request);
  void wait_for(const Connection& connection, MessageReader& reader, bool wants_values);
  void settle(Waiter& waiter, StoreAnswer answer);
  void expire_waiters();
  void store(const std::string& key, std::string value);

  const base::JobToken token_;
  const int world_size_;
  const base::UniqueFd listener_;
  const base::UniqueFd wake_;  // readable: look at what is below mutex_

  // Of the thread alone.
  std::list<Connection> connections_;
  std::map<std::string, std::string> values_;
  std::list<Waiter> waiters_;
  bool accepts_ = true;

  std::mutex mutex_;
  std::condition_variable came_;
  bool ending_ = false;                   // protected by mutex_, as all below
  std::vector<base::UniqueFd> arrivals_;  // ends of connections from this process
  std::set<int> ranks_;

  std::thread thread_;
};

}  // namespace lockstep::comm
