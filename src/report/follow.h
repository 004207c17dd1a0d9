#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::report {

// The parts of an HTTP request that the server uses.
struct HttpRequest {
  std::string method;
  std::string path;  // without what follows '?'
  std::string host;  // of the header Host; "" if there is none
};

// Reads the head of a request. nullopt: it is not HTTP/1.
std::optional<HttpRequest> parse_http_request(std::string_view text);

// Serves the page of runs over HTTP while the runs go on: the page asks for a new version every two seconds.
//
// Listens on 127.0.0.1 only. Other users of this machine can connect too, so every path begins with a random
// token, which only the printed address has: requests without it, and requests by a name other than
// 127.0.0.1 or localhost (a web site whose name resolves to this machine), get an empty answer. The page
// sends no referrer and loads nothing from elsewhere.
class RunServer {
 public:
  // Port 0: the kernel chooses. A client that sends no request, or takes nothing of its answer, for as long
  // as `patience` is closed. ConfigError: a folder is not a run, or the port is taken.
  RunServer(std::vector<std::filesystem::path> run_folders, uint16_t port,
            std::chrono::milliseconds patience = std::chrono::seconds(20));
  ~RunServer();
  RunServer(const RunServer&) = delete;
  RunServer& operator=(const RunServer&) = delete;

  // "http://127.0.0.1:45123/9c0f.../".
  std::string address() const;
  // Serves until this descriptor is readable. Blocks.
  void run(int stop_fd);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::report
