#include "launcher/agent/run_options.h"

#include <signal.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <lockstep/error.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "base/number.h"
#include "cluster/node_resources.h"
#include "config/option_table.h"
#include "launcher/agent/hostfile.h"
#include "launcher/agent/slurm_step.h"

namespace lockstep::launcher {
namespace {

// --- the flags ---

// The flags of `lockstep run` as the user writes them: torchrun's, with its names and defaults,
// then Lockstep's own. run_options.h has their meaning.
struct RunFlags {
  // --- how many ---
  std::string nnodes = "1:1";
  std::string nproc_per_node = "1";
  int node_rank = 0;
  std::string hostfile;
  std::string include;
  std::string exclude;

  // --- rendezvous ---
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";
  std::string rdzv_conf;
  bool standalone = false;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  std::string local_addr;
  std::string token_file;

  // --- program ---
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string role = "default";
  std::string numa_binding;
  bool virtual_local_rank = false;

  // --- failures and signals ---
  int max_restarts = 0;
  double monitor_interval = 0.1;
  double shutdown_timeout = 30;
  double kill_timeout = 20;
  double stall_timeout = 30;
  std::string on_stall = "report";
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string notify_signals = "SIGUSR1,SIGUSR2";

  // --- output ---
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string log_line_prefix_template;
  std::string local_ranks_filter;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;
  bool prefix = true;
  bool quiet = false;

  // --- instead of a run ---
  std::string print_completion;

  // --- torchrun's flags for Python functions and plug-ins; refused if given ---
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string logs_specs;
};

// The flags, and torchrun's PET_NAME variables for them.
config::OptionTable run_flag_table(RunFlags& flags) {
  config::OptionTable table(
      "Starts a program once per rank, on this node or together with the same command on others, watches\n"
      "the ranks and ends or restarts them together. Takes torchrun's flags.\n"
      "\n"
      "  lockstep run -n 2 ./program --its-flag\n"
      "  lockstep run --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 -n 4 train.py",
      "PET_");
  table.add("nnodes", flags.nnodes, "nodes, or MIN:MAX for a job that may grow and shrink")
      .add("nproc_per_node", flags.nproc_per_node, "ranks on this node: a number, gpu, cpu or auto",
           {.short_flag = "n"})
      .add("node_rank", flags.node_rank, "rank of this node", {.minimum = 0})
      .add("hostfile", flags.hostfile,
           "DeepSpeed's list of nodes, lines NAME slots=NUMBER: says how many nodes and ranks there are, "
           "which "
           "node this one is, and the address of node 0",
           {.has_variable = false})
      .add("include", flags.include, "only these nodes of the hostfile: NAME@NAME", {.has_variable = false})
      .add("exclude", flags.exclude, "all but these nodes of the hostfile: NAME@NAME",
           {.has_variable = false})
      .add("rdzv_backend", flags.rdzv_backend, "static: node ranks are given; c10d: assigned as nodes join",
           {.choices = {"static", "c10d"}})
      .add("rdzv_endpoint", flags.rdzv_endpoint, "HOST[:PORT] of node 0, the launchers' rendezvous")
      .add("rdzv_id", flags.rdzv_id, "id of the job; launchers with different ids refuse each other")
      .add("rdzv_conf", flags.rdzv_conf,
           "KEY=VALUE,...: join_timeout, last_call_timeout, timeout, heartbeat_timeout, is_host")
      .add("standalone", flags.standalone, "run on this node only", {.negatable = false})
      .add("master_addr", flags.master_addr, "address of node 0, with --rdzv-backend static")
      .add("master_port", flags.master_port,
           "port on node 0; unset: a free port for a single node, otherwise 29500", {.minimum = 0})
      .add("local_addr", flags.local_addr, "the address of this node that the others use")
      .add("token_file", flags.token_file, "file with the job's secret, readable by its owner only")
      .add("module", flags.module, "run python -m PROGRAM", {.short_flag = "m", .negatable = false})
      .add("no_python", flags.no_python, "execute the program itself, even if it is a .py file",
           {.negatable = false})
      .add("run_path", flags.run_path, "run the program under Python, whatever its name",
           {.negatable = false})
      .add("role", flags.role, "name of the workers in prefixes and ROLE_NAME")
      .add("numa_binding", flags.numa_binding, "bind each rank to the CPUs near its GPU",
           {.choices = {"", "node", "socket", "exclusive", "core-complex"}, .has_variable = false})
      .add("virtual_local_rank", flags.virtual_local_rank, "LOCAL_RANK=0 and one visible GPU for every rank",
           {.negatable = false})
      .add("max_restarts", flags.max_restarts, "maximum number of restarts of the whole job", {.minimum = 0})
      .add("monitor_interval", flags.monitor_interval,
           "seconds; accepted as torchrun's flag without effect: exits are noticed at once", {.minimum = 0})
      .add("shutdown_timeout", flags.shutdown_timeout,
           "seconds from SIGTERM to SIGKILL; TORCH_ELASTIC_SHUTDOWN_TIMEOUT sets it too")
      .add("kill_timeout", flags.kill_timeout,
           "seconds from SIGKILL until a node whose ranks have not ended counts as lost")
      .add("stall_timeout", flags.stall_timeout,
           "seconds without progress until a job that hangs in a collective is reported; 0: never")
      .add("on_stall", flags.on_stall,
           "what to do then: only report it, kill the ranks that others wait for, or end the job",
           {.choices = {"report", "restart", "abort"}})
      .add("signals_to_handle", flags.signals_to_handle, "signals that end the job")
      .add("notify_signals", flags.notify_signals,
           "signals that are passed to the ranks and do not end the job")
      .add("log_dir", flags.log_dir, "folder of the log files; unset: a temporary one")
      .add("redirects", flags.redirects,
           "write to files instead: 0, 1 stdout, 2 stderr, 3 both, or RANK:N,...", {.short_flag = "r"})
      .add("tee", flags.tee, "write to files as well, the same way", {.short_flag = "t"})
      .add("log_line_prefix_template", flags.log_line_prefix_template,
           "prefix of each line of a rank; ${role_name}, ${rank}, ${local_rank} and ${hostname} are replaced")
      .add("local_ranks_filter", flags.local_ranks_filter, "show only these local ranks: 0,2")
      .add("duplicate_stdout_filters", flags.duplicate_stdout_filters,
           "copy lines that contain one of TEXT,TEXT to filtered_stdout.log")
      .add("duplicate_stderr_filters", flags.duplicate_stderr_filters, "the same for stderr")
      .add("prefix", flags.prefix, "print the rank before each line if there are several")
      .add("quiet", flags.quiet, "print failures only", {.negatable = false})
      .add("print_completion", flags.print_completion, "print what `lockstep completion` prints",
           {.choices = {"", "bash", "zsh", "tcsh"}, .has_variable = false})
      .add("start_method", flags.start_method, "has no effect: refused")
      .add("event_log_handler", flags.event_log_handler, "has no effect: refused")
      .add("logs_specs", flags.logs_specs, "has no effect: refused", {.has_variable = false});
  return table;
}

// --- their values ---

std::optional<Streams> parse_streams(std::string_view text) {
  const std::optional<int64_t> number = base::parse_integer(text);
  if (text.size() != 1 || !number || *number > 3) return std::nullopt;
  return Streams{(*number & 1) != 0, (*number & 2) != 0};
}

[[noreturn]] void refuse_streams(const std::string& flag, const std::string& text) {
  throw ConfigError("run", fmt::format("{} must be 0 (none), 1 (stdout), 2 (stderr), 3 (both) or "
                                       "LOCAL_RANK:NUMBER,... with each rank once: '{}'",
                                       flag, text));
}

}  // namespace

StreamChoice StreamChoice::parse(const std::string& flag, const std::string& text) {
  StreamChoice choice;
  if (const std::optional<Streams> all = parse_streams(text)) {
    choice.all_ = *all;
    return choice;
  }
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos) refuse_streams(flag, text);
    const std::optional<int64_t> rank = base::parse_integer(item.substr(0, colon));
    const std::optional<Streams> streams = parse_streams(item.substr(colon + 1));
    if (!rank || *rank < 0 || *rank > std::numeric_limits<int>::max() || !streams) refuse_streams(flag, text);
    if (!choice.by_rank_.emplace(static_cast<int>(*rank), *streams).second) refuse_streams(flag, text);
  }
  if (choice.by_rank_.empty() || text.back() == ',') refuse_streams(flag, text);
  return choice;
}

Streams StreamChoice::of(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

bool StreamChoice::any() const {
  return all_.out || all_.err || std::any_of(by_rank_.begin(), by_rank_.end(), [](const auto& entry) {
           return entry.second.out || entry.second.err;
         });
}

namespace {

// torchrun's ports.
constexpr int kDefaultStaticPort = 29500;
constexpr int kDefaultOpenPort = 29400;

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw ConfigError("run", fmt::format(text, std::forward<Args>(args)...));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::optional<int> parse_int(std::string_view text) {
  const std::optional<int64_t> number = base::parse_integer(text);
  if (!number || *number < 0 || *number > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*number);
}

void parse_nodes(const std::string& text, RunOptions& options) {
  const size_t colon = text.find(':');
  const std::optional<int> min = parse_int(text.substr(0, colon));
  const std::optional<int> max = colon == std::string::npos ? min : parse_int(text.substr(colon + 1));
  if (!min || !max || *min < 1 || *max < *min) {
    refuse("--nnodes must be a number or MIN:MAX with 1 <= MIN <= MAX: '{}'", text);
  }
  options.min_nodes = *min;
  options.max_nodes = *max;
}

int parse_local_world_size(const std::string& text, const MachineCounts& machine) {
  if (text == "cpu") return machine.cpus;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cpus;
  if (text == "gpu") {
    if (machine.gpus == 0) refuse("--nproc-per-node gpu, but no GPU is visible here");
    return machine.gpus;
  }
  const std::optional<int> number = parse_int(text);
  if (!number || *number < 1)
    refuse("--nproc-per-node must be a number from 1 on, gpu, cpu or auto: '{}'", text);
  return *number;
}

uint16_t checked_port(const std::string& flag, int64_t port) {
  if (port < 0 || port > 65535) refuse("{} must be a port from 0 to 65535: {}", flag, port);
  return static_cast<uint16_t>(port);
}

// HOST, HOST:PORT, [IPV6] or [IPV6]:PORT.
void parse_endpoint(const std::string& text, int default_port, JoinOptions& join) {
  std::string host = text, port;
  if (text.starts_with("[")) {
    const size_t end = text.find(']');
    if (end == std::string::npos) refuse("--rdzv-endpoint has no ']' after its address: '{}'", text);
    host = text.substr(1, end - 1);
    const std::string rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') refuse("--rdzv-endpoint must be HOST[:PORT]: '{}'", text);
    port = rest.empty() ? "" : rest.substr(1);
  } else if (const size_t colon = text.rfind(':'); colon != std::string::npos && text.find(':') == colon) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.empty()) refuse("--rdzv-endpoint names no host: '{}'", text);
  join.host = host;
  const std::optional<int> number = port.empty() ? default_port : parse_int(port);
  if (!number) refuse("--rdzv-endpoint must be HOST[:PORT]: '{}'", text);
  join.port = checked_port("the port of --rdzv-endpoint", *number);
}

std::chrono::milliseconds seconds_of(const std::string& name, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9)
    refuse("{} must be seconds from 0 on: {}", name, seconds);
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::chrono::milliseconds parse_seconds(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double seconds = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0') refuse("{} must be seconds: '{}'", name, value);
  return seconds_of(name, seconds);
}

std::chrono::milliseconds conf_seconds(const std::string& key, const std::string& value) {
  return parse_seconds("--rdzv-conf " + key, value);
}

// By the flag or its variable, else by torchrun's older variable, else the default of the flag.
std::chrono::milliseconds decide_shutdown_timeout(const RunFlags& flags, const config::OptionTable& table,
                                                  const base::Environment& environment) {
  constexpr const char* kVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  const std::string text = environment.get(kVariable).value_or("");
  if (table.given("shutdown_timeout") || text.empty())
    return seconds_of("--shutdown-timeout", flags.shutdown_timeout);
  return parse_seconds(kVariable, text);
}

bool conf_bool(const std::string& key, const std::string& value) {
  if (value == "1" || value == "true" || value == "True") return true;
  if (value == "0" || value == "false" || value == "False") return false;
  refuse("--rdzv-conf: {} must be 0 or 1: '{}'", key, value);
}

std::chrono::milliseconds conf_heartbeat(const std::string& key, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLeast{500}, kMost{std::chrono::hours(1)};
  if (timeout < kLeast || timeout > kMost) {
    refuse("--rdzv-conf {} must be from 0.5 to 3600 seconds: {}", key,
           std::chrono::duration<double>(timeout).count());
  }
  return timeout;
}

// torchrun's keys. Those of its store and its polling are accepted and have no effect here.
void apply_conf(const std::string& text, JoinOptions& join) {
  static const std::set<std::string> kKeysWithoutEffect{"read_timeout", "close_timeout", "store_type",
                                                        "use_libuv"};
  std::optional<std::chrono::milliseconds> heartbeat, interval;
  std::optional<int> attempts;
  for (const std::string& item : split(text, ',')) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos) refuse("--rdzv-conf must be KEY=VALUE,...: '{}'", text);
    const std::string key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "join_timeout" || key == "timeout") {
      join.join_timeout = conf_seconds(key, value);
    } else if (key == "last_call_timeout") {
      join.last_call_timeout = conf_seconds(key, value);
    } else if (key == "heartbeat_timeout") {
      heartbeat = conf_heartbeat(key, conf_seconds(key, value));
    } else if (key == "keep_alive_interval") {
      interval = conf_seconds(key, value);
    } else if (key == "keep_alive_max_attempt") {
      attempts = parse_int(value);
      if (!attempts) refuse("--rdzv-conf {} must be a number: '{}'", key, value);
    } else if (key == "is_host") {
      join.is_host = conf_bool(key, value);
    } else if (!kKeysWithoutEffect.contains(key)) {
      refuse(
          "--rdzv-conf has an unknown key: '{}' (join_timeout, last_call_timeout, timeout, "
          "heartbeat_timeout, is_host)",
          key);
    }
  }
  if (heartbeat) {
    join.heartbeat_timeout = *heartbeat;
  } else if (interval || attempts) {
    // torchrun's two keys for the same time, and their defaults.
    const std::chrono::milliseconds kept = interval.value_or(std::chrono::seconds(5));
    join.heartbeat_timeout =
        conf_heartbeat("keep_alive_interval * keep_alive_max_attempt", kept * attempts.value_or(3));
  }
}

std::string random_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", device());
  return id;
}

void decide_alone(const RunFlags& flags, const config::OptionTable& table, RunOptions& options) {
  if (flags.node_rank != 0)
    refuse("--node-rank {} of one node; --nnodes says how many there are", flags.node_rank);
  if (flags.standalone) {
    for (const char* name : {"rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port"}) {
      if (table.given(name)) refuse("--standalone leaves no room for --{}: remove one of them", name);
    }
    options.run_id = random_id();
  }
  // No flag names the job or its port: a random name, as torchrun assigns one since 2.12.
  if (flags.rdzv_backend == "static" && flags.rdzv_endpoint.empty() && !flags.master_port &&
      !table.given("rdzv_id") && options.run_id == flags.rdzv_id) {
    options.run_id = random_id();
  }
  options.join.kind = JoinOptions::Kind::kAlone;
  if (!flags.rdzv_endpoint.empty()) {
    JoinOptions endpoint;
    parse_endpoint(flags.rdzv_endpoint, 0, endpoint);
    options.store_addr = flags.local_addr.empty() ? endpoint.host : flags.local_addr;
    // With c10d the port is the launchers' rendezvous, not the store's.
    options.store_port = flags.rdzv_backend == "static" ? endpoint.port : 0;
    return;
  }
  options.store_addr = flags.master_addr;
  options.store_port = checked_port("--master-port", flags.master_port.value_or(0));
}

void decide_join(const RunFlags& flags, const config::OptionTable& table, RunOptions& options) {
  JoinOptions& join = options.join;
  const bool open = flags.rdzv_backend == "c10d";
  join.kind = open ? JoinOptions::Kind::kOpen : JoinOptions::Kind::kStatic;
  if (open) {
    for (const char* name : {"master_addr", "master_port"}) {
      if (table.given(name)) refuse("--{} is for --rdzv-backend static; with c10d use --rdzv-endpoint", name);
    }
    if (flags.rdzv_endpoint.empty())
      refuse("--rdzv-backend c10d with several nodes needs --rdzv-endpoint HOST[:PORT]");
    if (table.given("node_rank")) join.node_rank = flags.node_rank;
  } else {
    if (options.min_nodes != options.max_nodes) {
      refuse("--nnodes {} needs --rdzv-backend c10d: with static every node has its place", flags.nnodes);
    }
    join.node_rank = flags.node_rank;
    join.is_host = flags.node_rank == 0;
  }
  if (join.node_rank && *join.node_rank >= options.max_nodes) {
    refuse("--node-rank {} is not one of {} nodes", *join.node_rank, options.max_nodes);
  }
  if (!flags.rdzv_endpoint.empty()) {
    parse_endpoint(flags.rdzv_endpoint, open ? kDefaultOpenPort : kDefaultStaticPort, join);
    join.host_option = "--rdzv-endpoint";
  } else {
    join.host = flags.master_addr;
    if (!table.given("master_addr") && !flags.hostfile.empty()) join.host_option = "--hostfile";
    join.port = checked_port("--master-port", flags.master_port.value_or(kDefaultStaticPort));
    if (!table.given("master_addr") && flags.hostfile.empty()) {
      options.hints.push_back(fmt::format(
          "--master-addr is not given: launchers look for node 0 on their own machine ({}). Where "
          "the nodes are machines, give all of them the address of node 0",
          flags.master_addr));
    }
  }
  if (join.port == 0) refuse("several nodes need to know the port: it must not be 0");
  apply_conf(flags.rdzv_conf, join);
}

// Sets the flags that the hostfile stands for.
void apply_hostfile(const config::OptionTable& table, RunFlags& flags) {
  if (flags.hostfile.empty()) {
    for (const char* name : {"include", "exclude"}) {
      if (table.given(name)) refuse("--{0} is for --hostfile: add it, or leave out --{0}", name);
    }
    return;
  }
  for (const auto& [name, flag] :
       {std::pair("nnodes", "nnodes"), std::pair("nproc_per_node", "nproc-per-node"),
        std::pair("standalone", "standalone"), std::pair("rdzv_backend", "rdzv-backend"),
        std::pair("rdzv_endpoint", "rdzv-endpoint")}) {
    if (table.given(name)) refuse("--hostfile leaves no room for --{}: remove one of them", flag);
  }
  const std::vector<HostfileNode> nodes =
      choose_nodes(read_hostfile(flags.hostfile), flags.include, flags.exclude);
  if (!table.given("node_rank")) flags.node_rank = place_among(nodes, cluster::host_name());
  if (static_cast<size_t>(flags.node_rank) >= nodes.size())
    refuse("--node-rank {} is not one of {} nodes of the hostfile", flags.node_rank, nodes.size());
  flags.nnodes = std::to_string(nodes.size());
  flags.nproc_per_node = std::to_string(nodes[static_cast<size_t>(flags.node_rank)].slots);
  if (nodes.size() > 1 && !table.given("master_addr")) flags.master_addr = nodes.front().name;
}

// Whether a flag says something about nodes. If none does, a Slurm step decides.
bool asks_for_nodes(const config::OptionTable& table) {
  for (const char* name : {"hostfile", "nnodes", "node_rank", "standalone", "rdzv_backend", "rdzv_endpoint",
                           "master_addr", "master_port"}) {
    if (table.given(name)) return true;
  }
  return false;
}

void decide_by_step(const RunFlags& flags, const config::OptionTable& table, const SlurmStep& step,
                    const MachineCounts& machine, RunOptions& options) {
  options.min_nodes = options.max_nodes = step.num_nodes;
  if (!table.given("nproc_per_node")) options.local_world_size = std::max(1, machine.gpus);
  if (!table.given("rdzv_id")) options.run_id = step.id;
  if (step.num_nodes == 1) {
    decide_alone(flags, table, options);
    return;
  }
  JoinOptions& join = options.join;
  join.kind = JoinOptions::Kind::kStatic;
  join.node_rank = step.node_rank;
  join.is_host = step.node_rank == 0;
  join.host = step.address;
  join.host_option = "MASTER_ADDR";
  join.port = step.port;
  apply_conf(flags.rdzv_conf, join);
}

std::vector<int> parse_signals(const std::string& flag, const std::string& text) {
  static const std::map<std::string, int> kSignals = [] {
    std::map<std::string, int> all;
    for (int number = 1; number < NSIG; ++number) {
      if (const char* name = ::sigabbrev_np(number)) all[name] = number;
    }
    return all;
  }();
  std::vector<int> signals;
  for (std::string name : split(text, ',')) {
    const std::string given = name;
    if (name.starts_with("SIG")) name.erase(0, 3);
    const auto found = kSignals.find(name);
    if (found == kSignals.end() || found->second == SIGKILL || found->second == SIGSTOP) {
      refuse("{} must be names of signals that can be handled, as SIGTERM,SIGUSR1: '{}'", flag, given);
    }
    signals.push_back(found->second);
  }
  return signals;
}

std::optional<std::set<int>> parse_shown_ranks(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::set<int> ranks;
  for (const std::string& part : split(text, ',')) {
    const std::optional<int> rank = parse_int(part);
    if (!rank) refuse("--local-ranks-filter must be local ranks, as 0,2: '{}'", text);
    ranks.insert(*rank);
  }
  return ranks;
}

// "," separates; ",," stands for a comma.
std::vector<std::string> parse_filters(const std::string& text) {
  std::vector<std::string> filters;
  if (text.empty()) return filters;
  filters.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += text[i++];
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

void refuse_python_flags(const config::OptionTable& table) {
  if (table.given("start_method"))
    refuse("--start-method is for Python functions; here programs are executed");
  if (table.given("event_log_handler"))
    refuse("--event-log-handler names a Python plug-in; there is none here");
  if (table.given("logs_specs"))
    refuse("--logs-specs names a Python plug-in; use --log-dir, --redirects, --tee");
}

void check_ranks(const RunOptions& options, const RunFlags& flags) {
  const auto check = [&](const char* flag, int highest, const std::string& text) {
    if (highest >= options.local_world_size) {
      refuse("{} names local rank {}, but this node has ranks 0 to {}: '{}'", flag, highest,
             options.local_world_size - 1, text);
    }
  };
  check("--redirects", options.redirects.highest_rank(), flags.redirects);
  check("--tee", options.tee.highest_rank(), flags.tee);
  if (options.shown_ranks)
    check("--local-ranks-filter", *options.shown_ranks->rbegin(), flags.local_ranks_filter);
}

CommandKind command_kind(const RunFlags& flags) {
  if (flags.run_path) return CommandKind::kScript;
  if (flags.module && flags.no_python) refuse("--module and --no-python exclude each other: remove one");
  if (flags.module) return CommandKind::kModule;
  return flags.no_python ? CommandKind::kExecute : CommandKind::kDetect;
}

std::string read_token(const RunFlags& flags, const base::Environment& environment) {
  if (flags.token_file.empty()) return environment.get("LOCKSTEP_JOB_TOKEN").value_or("");
  struct stat status {};
  std::ifstream file(flags.token_file);
  std::string token;
  if (::stat(flags.token_file.c_str(), &status) != 0 || !std::getline(file, token) || token.empty())
    refuse("--token-file cannot be read or is empty: '{}'", flags.token_file);
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    refuse("--token-file must be for its owner only, its mode is {:04o}: chmod 600 '{}'",
           status.st_mode & 07777, flags.token_file);
  }
  return token;
}

void decide_output(const RunFlags& flags, const base::Environment& environment, RunOptions& options) {
  options.log_dir = flags.log_dir;
  options.redirects = StreamChoice::parse("--redirects", flags.redirects);
  options.tee = StreamChoice::parse("--tee", flags.tee);
  options.shown_ranks = parse_shown_ranks(flags.local_ranks_filter);
  options.stdout_filters = parse_filters(flags.duplicate_stdout_filters);
  options.stderr_filters = parse_filters(flags.duplicate_stderr_filters);
  options.quiet = flags.quiet;
  if (!flags.prefix) {
    if (!flags.log_line_prefix_template.empty())
      refuse("--no-prefix leaves no room for --log-line-prefix-template: remove one of them");
    return;
  }
  if (!flags.log_line_prefix_template.empty()) {
    options.prefix_template = flags.log_line_prefix_template;
    return;
  }
  const bool several = options.local_world_size > 1 || options.max_nodes > 1;
  options.prefix_template = environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
                                .value_or(several ? "[${role_name}${rank}]:" : "");
}

}  // namespace

RunOptions parse_run_options(const std::vector<std::string>& arguments, const base::Environment& environment,
                             const MachineCounts& machine) {
  RunFlags flags;
  config::OptionTable table = run_flag_table(flags);
  const std::vector<std::string> command = table.parse_command("lockstep run", arguments);
  RunOptions options;
  options.print_completion = flags.print_completion;
  if (!options.print_completion.empty()) return options;
  refuse_python_flags(table);
  apply_hostfile(table, flags);
  parse_nodes(flags.nnodes, options);
  options.local_world_size = parse_local_world_size(flags.nproc_per_node, machine);
  options.run_id = flags.rdzv_id;
  options.local_addr = flags.local_addr;
  if (flags.standalone && options.max_nodes > 1)
    refuse("--standalone is one node: '--nnodes {}'", flags.nnodes);
  const std::optional<SlurmStep> step =
      asks_for_nodes(table) ? std::nullopt : read_launcher_step(environment, cluster::host_name());
  if (step) {
    decide_by_step(flags, table, *step, machine, options);
  } else if (options.max_nodes == 1) {
    decide_alone(flags, table, options);
  } else {
    decide_join(flags, table, options);
  }
  options.join.token = read_token(flags, environment);
  options.role = flags.role;
  options.numa_binding = flags.numa_binding;
  options.virtual_local_rank = flags.virtual_local_rank;
  options.max_restarts = flags.max_restarts;
  options.shutdown_timeout = decide_shutdown_timeout(flags, table, environment);
  options.kill_timeout = seconds_of("--kill-timeout", flags.kill_timeout);
  options.stall_timeout = seconds_of("--stall-timeout", flags.stall_timeout);
  options.on_stall = flags.on_stall == "report"    ? RunOptions::OnStall::kReport
                     : flags.on_stall == "restart" ? RunOptions::OnStall::kRestart
                                                   : RunOptions::OnStall::kAbort;
  options.stop_signals = parse_signals("--signals-to-handle", flags.signals_to_handle);
  options.notify_signals = parse_signals("--notify-signals", flags.notify_signals);
  // torchrun's users may add USR1 to the signals to handle: then it ends the job.
  std::erase_if(options.notify_signals, [&](int signal) {
    return std::find(options.stop_signals.begin(), options.stop_signals.end(), signal) !=
           options.stop_signals.end();
  });
  decide_output(flags, environment, options);
  check_ranks(options, flags);
  options.command = resolve_command(command_kind(flags), command, environment);
  return options;
}

}  // namespace lockstep::launcher
