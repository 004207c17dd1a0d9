#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::track {

// A token is preferred to user name and password; all empty: no authentication.
struct Credentials {
  std::string username;
  std::string password;
  std::string token;
};

struct HttpRequest {
  std::string method;  // GET, POST or PUT
  std::string url;
  std::string content_type;
  std::string body;
  // PUT: the file whose content is sent instead of body.
  std::filesystem::path file = {};
};

struct HttpResponse {
  int status = 0;
  std::string body;
};

// Sends requests one after the other over one connection. Uses the proxy of the usual
// environment variables and the certificates of the system. send() is for one thread;
// give_up_at() may be called from another thread at the same time.
class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HttpClient(Credentials credentials);
  ~HttpClient();

  // Blocks until the server has answered, with whatever status. CommError: no connection within
  // 5 s, no byte transferred for 30 s, or the deadline of give_up_at(). After an upload the server
  // may take 30 s plus the time of the upload to answer, because it may forward the file.
  // ConfigError: the file cannot be read, or the answer has more than 8 MiB.
  HttpResponse send(const HttpRequest& request);

  // Sets a deadline: a request in progress ends within about a second of it, and later requests
  // fail. The progress of an upload moves the deadline to `extension` from now; after the last
  // byte the time of the upload is added once. 0: the deadline does not move.
  void give_up_at(Clock::time_point time, Clock::duration extension = {}) {
    deadline_ = time;
    extension_ = extension;  // last: a thread that sees the extension also sees its deadline
  }
  bool has_given_up() const { return Clock::now() >= deadline_.load(); }

 private:
  struct Handle;
  struct Transfer;

  // False: the deadline does not move.
  bool extend_deadline(Clock::duration more);

  const Credentials credentials_;
  std::atomic<Clock::time_point> deadline_{Clock::time_point::max()};
  std::atomic<Clock::duration> extension_{Clock::duration::zero()};
  std::unique_ptr<Handle> handle_;
};

// A part of a URL: all characters except letters, digits and -._~ become %XX.
std::string url_encoded(std::string_view text);

}  // namespace lockstep::track
