#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace lockstep::base {

// Whether getaddrinfo(3) says that there is no such host, and not that nobody could be asked.
bool is_unknown_host(int code);

// What it says in words. REQUIRES: errno is still that of the call.
std::string lookup_error(int code);

// How long a host that is not known is asked for again: the names of containers that start
// together appear one after the other.
inline constexpr std::chrono::milliseconds kHostPatience{8000};

// Looks a host up, again until it is known, at most for this long. What the system says of a host
// that it does not know; nullopt: it has an address, or nobody could be asked now, and whoever
// connects may try again.
std::optional<std::string> find_unknown_host(const std::string& host, std::chrono::milliseconds patience);

}  // namespace lockstep::base
