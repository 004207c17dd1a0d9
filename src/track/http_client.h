#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::track {

// Who we are to a server. A token wins over a name and a password; all empty: nobody.
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

// Sends requests one after the other and keeps the connection. Proxies are those of the
// usual variables, certificates those of the system. Sending is for one thread;
// give_up_at() may be called from another one meanwhile.
class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HttpClient(Credentials credentials);
  ~HttpClient();

  // Blocks until the answer is there, whatever its status is. CommError: no connection
  // within 5 s, no byte moved for 30 s, or the time of give_up_at(). A server that has all of a
  // file may be silent for as long as the file took, and 30 s: it may have to pass the file on.
  // ConfigError: a file that cannot be read, or an answer of more than 8 MiB.
  HttpResponse send(const HttpRequest& request);

  // Ends, within about a second of this time, a request under way, and all later ones. A file
  // that is sent puts the time off: to `patience` after the server took some of it, and once the
  // server has all of it by as long as that took, too. 0: nothing puts it off.
  void give_up_at(Clock::time_point time, Clock::duration patience = {}) {
    deadline_ = time;
    patience_ = patience;  // last: whoever sees it sees the deadline that it puts off
  }
  bool has_given_up() const { return Clock::now() >= deadline_.load(); }

 private:
  struct Handle;
  struct Transfer;

  // False: nothing puts the deadline off.
  bool put_off(Clock::duration more);

  const Credentials credentials_;
  std::atomic<Clock::time_point> deadline_{Clock::time_point::max()};
  std::atomic<Clock::duration> patience_{Clock::duration::zero()};
  std::unique_ptr<Handle> handle_;
};

// A part of a URL with all but letters, digits and -._~ as %XX.
std::string url_encoded(std::string_view text);

}  // namespace lockstep::track
