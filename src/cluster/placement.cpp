#include "cluster/placement.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/number.h"
#include "cluster/placement_rules.h"
#include "cluster/variables.h"

namespace lockstep::cluster {
namespace {

// --- torch's init_method URL ---

struct InitMethod {
  // Empty for env://: the rendezvous is found as if no URL had been given.
  std::optional<Rendezvous> rendezvous;
  // From "?rank=R&world_size=W".
  std::optional<int> rank;
  std::optional<int> world_size;
};

class Url {
 public:
  explicit Url(const std::string& text) : text_(text) {
    const size_t colon = text.find("://");
    if (colon == std::string::npos) fail("it must be env://, tcp://host:port or file:///path");
    scheme = text.substr(0, colon);
    const size_t begin = colon + 3;
    const size_t mark = text.find('?', begin);
    location = text.substr(begin, mark == std::string::npos ? mark : mark - begin);
    if (mark != std::string::npos) query = text.substr(mark + 1);
  }

  [[noreturn]] void fail(std::string_view why) const {
    throw ConfigError("cluster", fmt::format("init_method cannot be used, {}: init_method='{}'", why, text_));
  }

  std::string scheme;
  std::string location;  // between "://" and "?"
  std::string query;

 private:
  const std::string& text_;
};

Rendezvous tcp_rendezvous(const Url& url) {
  Rendezvous result;
  result.kind = Rendezvous::Kind::kTcp;
  std::string_view rest = url.location;
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
  if (url.location.empty() || url.location.front() != '/')
    url.fail("its path must be absolute, as in file:///path");
  Rendezvous result;
  result.kind = Rendezvous::Kind::kFile;
  result.path = url.location;
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

// Reads env://, tcp://host:port, tcp://[ipv6]:port and file:///path, each with an
// optional query. ConfigError shows the URL and the mistake in it.
InitMethod parse_init_method(const std::string& text) {
  const Url url(text);
  InitMethod method;
  if (url.scheme == "tcp") {
    method.rendezvous = tcp_rendezvous(url);
  } else if (url.scheme == "file") {
    method.rendezvous = file_rendezvous(url);
  } else if (url.scheme != "env") {
    url.fail("it must be env://, tcp://host:port or file:///path");
  } else if (!url.location.empty()) {
    url.fail("nothing but a query may follow env://");
  }
  read_query(url, method);
  return method;
}

// --- the decision ---

std::string shown(const std::optional<int>& value) { return value ? std::to_string(*value) : "unset"; }

void set_arguments(const PlacementRequest& request, const InitMethod& method, Evidence& evidence) {
  if ((method.rank && request.rank) || (method.world_size && request.world_size)) {
    throw ConfigError("cluster",
                      fmt::format("rank and world_size are given both in init_method and outside of it: "
                                  "init_method='{}', rank={}, world_size={}",
                                  *request.init_method, shown(request.rank), shown(request.world_size)));
  }
  const std::optional<int> rank = request.rank ? request.rank : method.rank;
  const std::optional<int> world_size = request.world_size ? request.world_size : method.world_size;
  if (rank.has_value() != world_size.has_value()) {
    throw ConfigError("cluster",
                      fmt::format("rank and world_size must be given together: rank={}, world_size={}",
                                  shown(rank), shown(world_size)));
  }
  evidence.explicit_rank = rank.has_value();
  const std::pair<const char*, std::pair<const char*, std::optional<int>>> arguments[] = {
      {"RANK", {"argument rank", rank}},
      {"WORLD_SIZE", {"argument world_size", world_size}},
      {"LOCAL_RANK", {"argument local_rank", request.local_rank}},
      {"LOCAL_WORLD_SIZE", {"argument local_world_size", request.local_world_size}}};
  for (const auto& [name, argument] : arguments) {
    if (argument.second) evidence.variables.set_argument(name, argument.first, *argument.second);
  }
}

Evidence gather_evidence(const PlacementRequest& request, const base::Environment& environment,
                         const std::string& host) {
  if (request.nprocs && (*request.nprocs < 1 || *request.nprocs > kMaxRanks)) {
    throw ConfigError("cluster",
                      fmt::format("nprocs must be from 1 to {}: nprocs={}", kMaxRanks, *request.nprocs));
  }
  Evidence evidence{Variables(environment), request.nprocs, std::nullopt, false, host};
  const InitMethod method = request.init_method ? parse_init_method(*request.init_method) : InitMethod{};
  evidence.init_method = method.rendezvous;
  set_arguments(request, method, evidence);
  return evidence;
}

bool repeats_step(const Variables& variables, const RankMap& step) {
  return variables.rank("RANK") == step.rank && variables.count("WORLD_SIZE") == step.world_size;
}

SpawnPlan spawn_here(const Evidence& evidence) {
  SpawnPlan plan;
  plan.world_size = *evidence.nprocs;
  plan.local_world_size = plan.world_size;
  plan.nodes = {evidence.host};
  plan.ranks_per_node = {plan.world_size};
  if (evidence.init_method || evidence.variables.has_any({"MASTER_ADDR", "MASTER_PORT"})) {
    plan.rendezvous = choose_rendezvous(
        evidence.variables, evidence.init_method, plan.world_size,
        {.address = "127.0.0.1", .port = std::nullopt, .hint = "set it, or unset MASTER_ADDR for a free one"},
        {});
  }
  return plan;
}

Placement place_single(const Evidence& evidence) {
  const Variables& variables = evidence.variables;
  const Names broken{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
  if (variables.has_any(broken)) {
    variables.fail("RANK is missing while other variables of a launcher are set, set it or unset them",
                   broken);
  }
  if (evidence.init_method && !evidence.nprocs) {
    throw ConfigError("cluster", fmt::format("init_method names a rendezvous but this process has no rank, "
                                             "give rank and world_size: init_method='{}'",
                                             evidence.init_method->to_string()));
  }
  Placement placement;
  if (evidence.nprocs.value_or(1) > 1) {
    placement.spawn = spawn_here(evidence);
    placement.map.host = evidence.host;
  } else {
    fill_derived_fields(placement.map, evidence.host);
  }
  std::string warning = slurm_warning(evidence);
  if (!warning.empty()) placement.warnings.push_back(std::move(warning));
  return placement;
}

}  // namespace

Placement decide_placement(const PlacementRequest& request, const base::Environment& environment,
                           const std::string& host) {
  const Evidence evidence = gather_evidence(request, environment, host);
  const Variables& variables = evidence.variables;
  const bool has_rank = variables.has("RANK");
  // Complete rank variables come from the innermost launcher. Without LOCAL_WORLD_SIZE a
  // script may only have copied srun's or mpirun's values, as in RANK=$SLURM_PROCID; then
  // their own variables are the better source.
  if (has_rank && variables.has("LOCAL_WORLD_SIZE")) return place_by_rank_variables(evidence);
  if (!started_by_mpirun(variables)) {
    std::optional<RankMap> step = read_slurm_step(variables);
    if (step && (!has_rank || repeats_step(variables, *step)))
      return place_in_slurm_step(evidence, *std::move(step));
  }
  const bool from_mpi = has_mpi_variables(variables) && (!has_rank || repeats_mpi(variables));
  if (from_mpi) return place_in_mpi_world(evidence);
  if (has_rank) return place_by_rank_variables(evidence);
  return place_single(evidence);
}

}  // namespace lockstep::cluster
