#include "comm/gloo_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <lockstep/error.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/folder.h"
#include "base/log.h"
#include "base/network.h"
#include "base/number.h"

namespace lockstep::comm {
namespace {

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  // A datagram socket needs some port to be connected; nothing is ever sent.
  return AddressList(getaddrinfo(host.c_str(), "9", &hints, &list) == 0 ? list : nullptr);
}

bool interface_exists(const std::string& name) { return if_nametoindex(name.c_str()) != 0; }

std::string interface_names() {
  std::vector<std::string> names;
  if (struct if_nameindex* list = if_nameindex()) {
    for (auto* entry = list; entry->if_index != 0; ++entry) {
      names.emplace_back(entry->if_name);
    }
    if_freenameindex(list);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<GlooDevice> interfaces_in_list(const std::string& list) {
  std::vector<GlooDevice> devices;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    if (!interface_exists(name)) {
      throw ConfigError("gloo", fmt::format("GLOO_SOCKET_IFNAME names no network interface of this machine: "
                                            "'{}' in '{}', there are {}",
                                            name, list, interface_names()));
    }
    devices.push_back({name, ""});
    begin = end + 1;
  }
  return devices;
}

std::optional<std::string> numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return std::nullopt;
  }
  return text;
}

std::optional<std::string> address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (name != entry->ifa_name || entry->ifa_addr == nullptr) {
      continue;
    }
    const auto family = entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) {
      return numeric(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  return std::nullopt;
}

}  // namespace

std::string numeric_local_address(const std::string& requested, const std::string& rendezvous_address) {
  const GlooDevice device =
      choose_gloo_devices(requested, base::Environment::of_process(), rendezvous_address).front();
  if (!device.interface.empty()) {
    if (const auto address = address_of_interface(device.interface)) {
      return *address;
    }
    throw ConfigError("comm", fmt::format("network interface has no IP address: {}", device.interface));
  }
  const AddressList list = resolve(device.address);
  return numeric(list->ai_addr, list->ai_addrlen).value_or(device.address);
}

std::optional<std::string> local_address_towards(const std::string& host) {
  const AddressList list = resolve(host);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      continue;
    }
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    const bool found = connect(fd, entry->ai_addr, entry->ai_addrlen) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0;
    close(fd);
    if (found) {
      return numeric(reinterpret_cast<sockaddr*>(&local), length);
    }
  }
  return std::nullopt;
}

std::vector<GlooDevice> choose_gloo_devices(const std::string& requested,
                                            const base::Environment& environment,
                                            const std::string& rendezvous_address) {
  if (!requested.empty()) {
    if (interface_exists(requested)) {
      return {{requested, ""}};
    }
    if (resolve(requested) != nullptr) {
      return {{"", requested}};
    }
    throw ConfigError("gloo", fmt::format("interface is neither a network interface of this machine nor an "
                                          "address that resolves: '{}', there are {}",
                                          requested, interface_names()));
  }
  if (const auto names = environment.get("GLOO_SOCKET_IFNAME"); names && !names->empty()) {
    return interfaces_in_list(*names);
  }
  if (!rendezvous_address.empty()) {
    if (const auto address = local_address_towards(rendezvous_address)) {
      return {{"", *address}};
    }
  }
  return {{"", "127.0.0.1"}};
}

std::set<int> listening_sockets() {
  std::set<int> found;
  std::error_code ignored;
  for (const base::FolderEntry& entry : base::list_folder("/proc/self/fd", ignored)) {
    const std::optional<int64_t> fd = base::parse_integer(entry.path().filename().string());
    if (!fd || !base::is_listening(static_cast<int>(*fd))) continue;
    int domain = 0;
    socklen_t length = sizeof domain;
    getsockopt(static_cast<int>(*fd), SOL_SOCKET, SO_DOMAIN, &domain, &length);
    if (domain == AF_INET || domain == AF_INET6) found.insert(static_cast<int>(*fd));
  }
  return found;
}

void refuse_connections(int listening_fd) {
  sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, drop_all};
  if (setsockopt(listening_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) {
    base::log_debug("gloo", "a port of Gloo stays open: {}", std::strerror(errno));
  }
}

}  // namespace lockstep::comm
