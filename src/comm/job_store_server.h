#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/job_token.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "comm/secure_connection.h"

namespace lockstep::comm {

// What a rank asks the job's store -> the answer. Each is one message on an authenticated
// connection.
enum class StoreCall : uint8_t {
  kSet = 1,     // key, value ->
  kCompareSet,  // key, expected, desired -> value
  kGet,         // timeout, keys -> values: waits until all keys exist
  kAdd,         // key, number -> number
  kDelete,      // key -> number: 1 if it existed
  kCheck,       // keys -> number: 1 if all exist
  kCount,       // -> number
  kWait,        // timeout, keys ->
  kAppend,      // key, value ->
  kMultiSet,    // key, value, key, value... ->
  kList,        // -> keys
};

// First byte of an answer.
enum class StoreAnswer : uint8_t { kDone = 0, kTimeout = 1, kRefused = 2 };

// Rank 0's side of the job's store: keys and values, and the ranks that wait for them. It has a
// thread. A rank may have several connections.
class JobStoreServer {
 public:
  using Clock = std::chrono::steady_clock;

  JobStoreServer(base::UniqueFd listener, const base::JobToken& token, int world_size);
  ~JobStoreServer();
  JobStoreServer(const JobStoreServer&) = delete;
  JobStoreServer& operator=(const JobStoreServer&) = delete;

  // A new connection from this process. Thread-safe.
  base::UniqueFd connect_here();

  // Blocks until every rank has connected and authenticated once. Returns the ranks that did not
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
  void add_connection(base::UniqueFd fd);
  // False: the connection is over.
  bool serve_connection(const Connection& connection);
  void record_rank(int rank);
  void drop_late_unauthenticated();
  void answer(const Connection& connection, const std::string& request);
  std::string answer_of(const Connection& connection, const std::string& request);
  void wait_for(const Connection& connection, MessageReader& reader, bool wants_values);
  void answer_waiter(Waiter& waiter, StoreAnswer answer);
  void expire_waiters();
  void store(const std::string& key, std::string value);

  const base::JobToken token_;
  const int world_size_;
  const base::UniqueFd listener_;
  const base::UniqueFd wake_;  // readable: the thread has to look at the members below mutex_

  // Used by the thread alone.
  std::list<Connection> connections_;
  std::map<std::string, std::string> values_;
  std::list<Waiter> waiters_;
  bool accepts_ = true;

  base::Mutex mutex_;
  base::Condition rank_came_;
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<base::UniqueFd> own_connections_ LOCKSTEP_GUARDED_BY(mutex_);  // new ones of this process
  std::set<int> ranks_ LOCKSTEP_GUARDED_BY(mutex_);                          // that have come

  std::thread thread_;
};

}  // namespace lockstep::comm
