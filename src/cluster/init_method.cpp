#include "cluster/init_method.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <string_view>

#include "base/number.h"
#include "cluster/variables.h"

namespace lockstep::cluster {
namespace {

class Url {
 public:
  explicit Url(const std::string& text) : text_(text) {
    const size_t colon = text.find("://");
    if (colon == std::string::npos) fail("it must be env://, tcp://host:port or file:///path");
    scheme = text.substr(0, colon);
    const size_t begin = colon + 3;
    const size_t mark = text.find('?', begin);
    place = text.substr(begin, mark == std::string::npos ? mark : mark - begin);
    if (mark != std::string::npos) query = text.substr(mark + 1);
  }

  [[noreturn]] void fail(std::string_view why) const {
    throw ConfigError("cluster", fmt::format("init_method cannot be used, {}: init_method='{}'", why, text_));
  }

  std::string scheme;
  std::string place;  // between "://" and "?"
  std::string query;

 private:
  const std::string& text_;
};

Rendezvous tcp_rendezvous(const Url& url) {
  Rendezvous result;
  result.kind = Rendezvous::Kind::kTcp;
  std::string_view rest = url.place;
  size_t colon = rest.rfind(':');
  if (!rest.empty() && rest.front() == '[') {
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) url.fail("the '[' of its address is not closed");
    result.address = rest.substr(1, close - 1);
    colon = close + 1;
    if (colon < rest.size() && rest[colon] != ':') url.fail("only a port may follow ']'");
  } else {
    result.address = rest.substr(0, colon);
    if (result.address.find(':') != std::string::npos) url.fail("an IPv6 address must stand in brackets");
  }
  if (result.address.empty()) url.fail("its host is missing");
  if (colon >= rest.size()) url.fail("its port is missing");
  const std::optional<int64_t> port = base::parse_integer(rest.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) url.fail("its port must be a whole number from 1 to 65535");
  result.port = static_cast<uint16_t>(*port);
  return result;
}

Rendezvous file_rendezvous(const Url& url) {
  // torch takes "file://a/b" for the file /b of a host a and drops the host.
  if (url.place.empty() || url.place.front() != '/')
    url.fail("its path must be absolute, as in file:///path");
  Rendezvous result;
  result.kind = Rendezvous::Kind::kFile;
  result.path = url.place;
  return result;
}

void read_query(const Url& url, InitMethod& method) {
  std::string_view rest = url.query;
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    if (key != "rank" && key != "world_size") url.fail("its query may hold only rank and world_size");
    const int lowest = key == "rank" ? 0 : 1;
    const int highest = key == "rank" ? kMaxRanks - 1 : kMaxRanks;
    const std::string_view text = equals == std::string_view::npos ? "" : pair.substr(equals + 1);
    const std::optional<int64_t> number = base::parse_integer(text);
    if (!number || *number < lowest || *number > highest) {
      url.fail(fmt::format("its {} must be a whole number from {} to {}", key, lowest, highest));
    }
    (key == "rank" ? method.rank : method.world_size) = static_cast<int>(*number);
  }
}

}  // namespace

InitMethod parse_init_method(const std::string& text) {
  const Url url(text);
  InitMethod method;
  if (url.scheme == "tcp") {
    method.rendezvous = tcp_rendezvous(url);
  } else if (url.scheme == "file") {
    method.rendezvous = file_rendezvous(url);
  } else if (url.scheme != "env") {
    url.fail("it must be env://, tcp://host:port or file:///path");
  } else if (!url.place.empty()) {
    url.fail("nothing but a query may follow env://");
  }
  read_query(url, method);
  return method;
}

}  // namespace lockstep::cluster
