#include "launch/rendezvous/join.h"

#include <lockstep/error.h>

#include <optional>
#include <utility>

#include "base/job_token.h"
#include "base/key_file.h"
#include "base/listen_socket.h"
#include "launch/rendezvous/coordinator_server.h"
#include "launch/rendezvous/local_membership.h"
#include "launch/rendezvous/remote_membership.h"

namespace lockstep::launcher {
namespace {

// A wildcard is no destination.
std::string reach_self_at(const std::string& listen_address) {
  if (listen_address == "0.0.0.0") return "127.0.0.1";
  if (listen_address == "::") return "::1";
  return listen_address;
}

RendezvousOptions to_self(RendezvousOptions options, const std::string& listen_address, uint16_t port) {
  options.host = reach_self_at(listen_address);
  options.port = port;
  return options;
}

// The secret of a job to which none was given, in files that its launchers read for as long as
// the job takes new ones.
class PublishedToken {
 public:
  explicit PublishedToken(const std::vector<std::string>& names) : text_(base::make_token()) {
    for (const std::string& name : names) {
      files_.emplace_back(name, base::Environment::of_process());
      files_.back().publish(text_);
    }
  }
  PublishedToken(PublishedToken&&) = default;
  ~PublishedToken() {
    for (const base::KeyFile& file : files_) file.remove();
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<base::KeyFile> files_;
};

class HostingMembership : public Membership {
 public:
  HostingMembership(base::EventLoop& loop, base::ListenSocket listener_socket, const NodeInfo& node,
                    const RendezvousOptions& options, const std::string& listen_address,
                    MembershipListener& listener, std::optional<PublishedToken> token)
      : token_(std::move(token)),
        server_(loop, std::move(listener_socket), options),
        member_(loop, node, to_self(options, listen_address, server_.port()), /*hosts_coordinator=*/true,
                listener) {}

  void worker_failed(const JobFailure& failure) override { member_.worker_failed(failure); }
  void progress(int generation, const std::vector<RankView>& workers) override {
    member_.progress(generation, workers);
  }
  void succeeded(int generation) override { member_.succeeded(generation); }
  void stopped(int generation) override { member_.stopped(generation); }
  void stuck(int generation, const std::string& reason) override { member_.stuck(generation, reason); }
  void leave(int signal) override { member_.leave(signal); }

 private:
  const std::optional<PublishedToken> token_;
  CoordinatorServer server_;
  RemoteMembership member_;
};

void check_options(const RendezvousOptions& options) {
  if (options.min_nodes < 1 || options.max_nodes < options.min_nodes || options.max_restarts < 0) {
    throw ConfigError("rendezvous", "a job needs 1 <= MIN <= MAX nodes and no negative number of restarts");
  }
}

}  // namespace

std::unique_ptr<Membership> join_alone(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                                       MembershipListener& listener) {
  node.node_rank = 0;
  if (node.address.empty()) node.address = "127.0.0.1";
  Generation map;
  map.master_addr = node.address;
  map.nodes = {std::move(node)};
  return join_known(loop, map, options, listener);
}

std::unique_ptr<Membership> join_known(base::EventLoop& loop, const Generation& map,
                                       const RendezvousOptions& options, MembershipListener& listener) {
  return std::make_unique<LocalMembership>(loop, map, options, listener);
}

std::unique_ptr<Membership> join_remote(base::EventLoop& loop, const NodeInfo& node,
                                        const RendezvousOptions& options, MembershipListener& listener) {
  return std::make_unique<RemoteMembership>(loop, node, options, /*hosts_coordinator=*/false, listener);
}

HostedJob host_job(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                   const std::string& listen_address, MembershipListener& listener) {
  check_options(options);
  base::ListenSocket socket = base::listen_on(listen_address, options.port);
  const uint16_t port = socket.port;
  if (node.address.empty()) node.address = options.host;
  // Only now: another launcher of this machine may have the port, and have written its own.
  std::optional<PublishedToken> token;
  RendezvousOptions own = options;
  if (own.token.empty() && !own.key_names.empty()) own.token = token.emplace(own.key_names).text();
  return {std::make_unique<HostingMembership>(loop, std::move(socket), node, own, listen_address, listener,
                                              std::move(token)),
          port};
}

}  // namespace lockstep::launcher
