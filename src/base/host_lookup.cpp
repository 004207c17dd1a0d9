#include "base/host_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace lockstep::base {
namespace {

constexpr std::chrono::milliseconds kLookupPause{500};

int look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code == 0) ::freeaddrinfo(found);
  return code;
}

}  // namespace

bool is_unknown_host(int code) {
  switch (code) {
    case 0:
    case EAI_AGAIN:
    case EAI_MEMORY:
    case EAI_SYSTEM: return false;
    default: return true;
  }
}

std::string lookup_error(int code) {
  return code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code);
}

std::optional<std::string> find_unknown_host(const std::string& host, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  while (true) {
    const int code = look_up(host);
    if (!is_unknown_host(code)) return std::nullopt;
    const Clock::duration left = deadline - Clock::now();
    if (left <= left.zero()) return lookup_error(code);
    std::this_thread::sleep_for(std::min<Clock::duration>(left, kLookupPause));
  }
}

}  // namespace lockstep::base
