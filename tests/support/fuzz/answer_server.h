#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/network.h"
#include "base/process.h"
#include "base/unique_fd.h"

namespace lockstep::fuzz {

// A server on the loopback that answers each connection with bytes that it was given, whatever
// was asked, and closes it.
class AnswerServer {
 public:
  // One a process: its thread ends with it.
  static AnswerServer& of_process() {
    static AnswerServer& server = *new AnswerServer;
    return server;
  }

  const std::string& url() const { return url_; }

  // The n-th connection from now on gets the n-th answer; those after the last one get the last.
  void set_answers(std::vector<std::string> answers) {
    const std::lock_guard lock(mutex_);
    answers_ = std::move(answers);
    next_ = 0;
  }

 private:
  AnswerServer() : listener_(base::listen_on_free_port("127.0.0.1")) {
    ::setenv("no_proxy", "*", 1);
    url_ = "http://127.0.0.1:" + std::to_string(listener_.port);
    // Signals are for the tests.
    base::start_without_signals([this] { serve(); }).detach();
  }

  static bool comes(int fd, int milliseconds) {
    pollfd event{fd, POLLIN, 0};
    return ::poll(&event, 1, milliseconds) > 0;
  }

  void serve() {
    while (true) {
      if (!comes(listener_.fd.get(), -1)) continue;
      const base::UniqueFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      std::string answer;
      {
        const std::lock_guard lock(mutex_);
        if (!answers_.empty()) answer = answers_[std::min(next_++, answers_.size() - 1)];
      }
      char buffer[8192];
      std::string request;
      while (request.find("\r\n\r\n") == std::string::npos && comes(fd.get(), 1000)) {
        const ssize_t size = ::read(fd.get(), buffer, sizeof(buffer));
        if (size <= 0) break;
        request.append(buffer, static_cast<size_t>(size));
      }
      for (std::string_view rest = answer; !rest.empty();) {
        const ssize_t size = ::send(fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
        if (size <= 0) break;
        rest.remove_prefix(static_cast<size_t>(size));
      }
      ::shutdown(fd.get(), SHUT_WR);
      // A connection that is closed with unread bytes is reset, and its peer may lose the answer.
      while (comes(fd.get(), 1000) && ::read(fd.get(), buffer, sizeof(buffer)) > 0) {
      }
    }
  }

  base::ListenSocket listener_;
  std::string url_;
  std::mutex mutex_;
  std::vector<std::string> answers_;
  size_t next_ = 0;
};

}  // namespace lockstep::fuzz
