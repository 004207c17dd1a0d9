#include "report/follow.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/log.h"
#include "base/network.h"
#include "base/unique_fd.h"
#include "report/report.h"
#include "report/run_files.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRequestBytes = 16 << 10;
constexpr size_t kMaxConnections = 64;

// The files of a run that change while it goes on, beside the logs of its GPUs.
constexpr std::array<const char*, 5> kFiles = {"metrics.csv", "metrics.jsonl", "config.json", "ranks.json",
                                               "run.json"};

// Size and time of a file; "" if it does not exist.
std::string version_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  return fmt::format("{:x}.{:x}.{:x}-", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

// Those of every file: another text if the page may be another one.
std::string version_of(const std::vector<fs::path>& folders) {
  std::string version;
  for (const fs::path& folder : folders) {
    for (const char* file : kFiles) version += version_of(folder / file);
    for (const auto& [node, path] : gpu_log_paths(folder)) version += version_of(path);
  }
  return version.empty() ? "none" : version;
}

// In constant time: how much of the token is right must not be visible.
bool equal_texts(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool is_field(std::string_view line, std::string_view name) {
  return line.size() > name.size() && line[name.size()] == ':' &&
         ::strncasecmp(line.data(), name.data(), name.size()) == 0;
}

std::string answer(std::string_view status, std::string_view type, std::string_view content) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n"
      "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\nX-Frame-Options: DENY\r\n\r\n{}",
      status, type, content.size(), content);
}

// Reads one request, sends one answer, and closes.
struct Connection {
  base::UniqueFd fd;
  std::string received = {};
  std::string to_send = {};
  size_t sent = 0;
  // Bytes that the client had not acknowledged when its time was last looked at.
  size_t left = std::numeric_limits<size_t>::max();
  base::EventLoop::Timer timer = {};
};

// Bytes that the client has not acknowledged: those of the answer that are not sent, and those in the kernel.
size_t bytes_left(const Connection& connection) {
  int queued = 0;
  if (::ioctl(connection.fd.get(), SIOCOUTQ, &queued) != 0) queued = 0;
  return connection.to_send.size() - connection.sent + static_cast<size_t>(queued);
}

}  // namespace

std::optional<HttpRequest> parse_http_request(std::string_view text) {
  const size_t end = text.find("\r\n");
  const std::string_view line = text.substr(0, end);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(line.begin(), line.end(), is_control)) return std::nullopt;
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || last <= first || !line.substr(last + 1).starts_with("HTTP/1."))
    return std::nullopt;
  HttpRequest request;
  request.method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  request.path = target.substr(0, target.find('?'));
  for (size_t begin = end; begin != std::string_view::npos;) {
    begin += 2;
    const size_t next = text.find("\r\n", begin);
    const std::string_view field = text.substr(begin, next - begin);
    if (is_field(field, "host")) {
      const size_t value = field.find_first_not_of(" \t", 5);
      if (value != std::string_view::npos)
        request.host = field.substr(value, field.find_last_not_of(" \t") - value + 1);
    }
    begin = next;
  }
  return request;
}

struct RunServer::Impl {
  Impl(std::vector<fs::path> folders_, uint16_t port, std::chrono::milliseconds patience_)
      : folders(std::move(folders_)),
        patience(patience_),
        socket(base::listen_on("127.0.0.1", port)),
        token(base::make_token()) {
    page();  // a folder that is not a run is an error now
    ::fcntl(socket.fd.get(), F_SETFL, O_NONBLOCK);
    loop.watch(socket.fd.get(), EPOLLIN, [this](uint32_t) { accept_all(); });
  }

  // Read again only if a file has changed.
  const std::string& page() {
    std::string version = version_of(folders);
    if (version != page_version) {
      html = run_page(read_runs(folders), version);
      page_version = std::move(version);
    }
    return html;
  }

  std::string answer_to(const HttpRequest& request) {
    const std::string own = fmt::format(":{}", socket.port);
    const bool is_own_name = request.host == "127.0.0.1" + own || request.host == "localhost" + own;
    const std::string prefix = "/" + token + "/";
    const bool knows_token = request.path.size() >= prefix.size() &&
                             equal_texts(std::string_view(request.path).substr(0, prefix.size()), prefix);
    if (!is_own_name || !knows_token) return answer("404 Not Found", "text/plain", "");
    if (request.method != "GET") return answer("405 Method Not Allowed", "text/plain", "");
    const std::string_view place = std::string_view(request.path).substr(prefix.size());
    if (place == "version") return answer("200 OK", "text/plain", version_of(folders));
    if (!place.empty()) return answer("404 Not Found", "text/plain", "");
    try {
      return answer("200 OK", "text/html", page());
    } catch (const std::exception& error) {  // the folder was removed
      base::log_warning("report", "the page cannot be made: {}", error.what());
      return answer("503 Service Unavailable", "text/plain", "");
    }
  }

  void accept_all() {
    while (true) {
      base::UniqueFd fd(::accept4(socket.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) return;
      if (connections.size() >= kMaxConnections) continue;
      const int key = fd.get();
      Connection& connection = connections[key];
      connection.fd = std::move(fd);
      connection.timer = loop.after(patience, [this, key] { close_if_idle(key); });
      loop.watch(key, EPOLLIN, [this, key](uint32_t) { serve(key); });
    }
  }

  void close(int key) {
    const auto found = connections.find(key);
    if (found == connections.end()) return;
    loop.cancel(found->second.timer);
    loop.forget(key);
    connections.erase(found);
  }

  // A client on a slow link needs longer for a large page than an idle one may stay.
  void close_if_idle(int key) {
    Connection& connection = connections.at(key);
    const size_t left = bytes_left(connection);
    if (connection.to_send.empty() || left >= connection.left) return close(key);
    connection.left = left;
    connection.timer = loop.after(patience, [this, key] { close_if_idle(key); });
  }

  void serve(int key) {
    Connection& connection = connections.at(key);
    if (connection.to_send.empty() && !receive(connection)) return;
    if (connection.to_send.empty()) return close(key);
    if (send_rest(connection)) close(key);
  }

  // False: more is to come.
  bool receive(Connection& connection) {
    std::array<char, 4096> part{};
    const ssize_t size = ::recv(connection.fd.get(), part.data(), part.size(), 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (size <= 0) return true;
    connection.received.append(part.data(), static_cast<size_t>(size));
    const bool is_whole = connection.received.find("\r\n\r\n") != std::string::npos;
    if (!is_whole && connection.received.size() < kMaxRequestBytes) return false;
    const std::optional<HttpRequest> request =
        is_whole ? parse_http_request(connection.received) : std::nullopt;
    connection.to_send = request ? answer_to(*request) : answer("400 Bad Request", "text/plain", "");
    return true;
  }

  // True: everything is sent, or the client has gone.
  bool send_rest(Connection& connection) {
    while (connection.sent < connection.to_send.size()) {
      const ssize_t size = ::send(connection.fd.get(), connection.to_send.data() + connection.sent,
                                  connection.to_send.size() - connection.sent, MSG_NOSIGNAL);
      if (size > 0) {
        connection.sent += static_cast<size_t>(size);
      } else if (size < 0 && errno == EAGAIN) {
        loop.change(connection.fd.get(), EPOLLOUT);
        return false;
      } else if (!(size < 0 && errno == EINTR)) {
        return true;
      }
    }
    ::shutdown(connection.fd.get(), SHUT_WR);
    return true;
  }

  const std::vector<fs::path> folders;
  const std::chrono::milliseconds patience;
  const base::ListenSocket socket;
  const std::string token;
  std::string page_version;
  std::string html;
  base::EventLoop loop;
  std::map<int, Connection> connections;
};

RunServer::RunServer(std::vector<fs::path> run_folders, uint16_t port, std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>(std::move(run_folders), port, patience)) {}

RunServer::~RunServer() = default;

std::string RunServer::address() const {
  return fmt::format("http://127.0.0.1:{}/{}/", impl_->socket.port, impl_->token);
}

void RunServer::run(int stop_fd) {
  impl_->loop.watch(stop_fd, EPOLLIN, [this](uint32_t) { impl_->loop.stop(); });
  impl_->loop.run();
  impl_->loop.forget(stop_fd);
}

}  // namespace lockstep::report
