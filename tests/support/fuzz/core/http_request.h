#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "report/follow.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// A request of a browser to the server of `lockstep report --follow`.
inline bool takes_http_request(std::string_view bytes) {
  const std::optional<report::HttpRequest> request = report::parse_http_request(bytes);
  if (!request) return false;
  require(request->method.find_first_of(" \r\n") == std::string::npos,
          "the method is a word of the first line");
  require(request->path.find_first_of("?\r\n") == std::string::npos,
          "the path is in the first line, without the query");
  const std::string& host = request->host;
  require(host.find("\r\n") == std::string::npos, "the host is in one line");
  require(host.empty() || (host.find_first_of(" \t") != 0 && host.find_last_of(" \t") != host.size() - 1),
          "the host has no space around it");
  return true;
}

}  // namespace lockstep::fuzz
