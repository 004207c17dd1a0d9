#include "launcher/slurm/sbatch_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/version.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/number.h"
#include "base/process.h"
#include "cluster/slurm_notation.h"

namespace lockstep::launcher {

// --- Slurm's version ---

std::string SlurmVersion::to_string() const { return fmt::format("{}.{:02}", year, month); }

std::optional<SlurmVersion> parse_slurm_version(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  text.remove_prefix(text.rfind(' ') + 1);
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(dot + 1);
  // Slurm's releases are YY.MM: two digits each.
  const std::string_view month_text = rest.substr(0, rest.find_first_of(".-"));
  const std::optional<int64_t> year = base::parse_integer(text.substr(0, dot));
  const std::optional<int64_t> month = base::parse_integer(month_text);
  if (!year || !month || month_text.size() != 2) return std::nullopt;
  if (*year < 1 || *year > 99 || *month < 1 || *month > 12) return std::nullopt;
  return SlurmVersion{static_cast<int>(*year), static_cast<int>(*month)};
}

std::optional<SlurmVersion> installed_slurm_version(const base::Environment& environment) {
  for (const char* name : {"sbatch", "scontrol"}) {
    const std::optional<std::string> program = base::find_program(name, environment);
    if (!program) continue;
    base::ProcessOptions options;
    options.program = *program;
    options.arguments = {name, "--version"};
    options.environment = environment;
    const auto result = base::run_program(options, std::chrono::seconds(10));
    if (!result || !result->state.success()) continue;
    if (const auto version = parse_slurm_version(result->output)) return version;
  }
  return std::nullopt;
}

bool srun_forgets_cpus_per_task(const SlurmVersion& version) {
  return !(version < SlurmVersion{22, 5}) && version < SlurmVersion{23, 11};
}

bool has_gpu_options(const SlurmVersion& version) { return !(version < SlurmVersion{19, 5}); }

// --- quoting ---

namespace {

bool is_plain(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  return !text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos;
}

}  // namespace

std::string shell_quote(std::string_view text) {
  if (is_plain(text)) return std::string(text);
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += R"('\'')";
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string directive_quote(std::string_view text) {
  base::check(text.find('\n') == std::string_view::npos, "a newline in an #SBATCH line");
  if (is_plain(text)) return std::string(text);
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

// --- the grammar of single values ---

namespace {

constexpr int kMaxCount = 1 << 20;
constexpr size_t kMaxValueBytes = 4096;  // sbatch's own buffer holds 8192 bytes
constexpr int64_t kMaxTask = 4000000;    // Slurm's largest array index
constexpr int64_t kMaxSignalTime = 65535;

[[noreturn]] void fail(std::string_view flag, std::string_view rule, std::string_view value) {
  throw ConfigError("slurm", fmt::format("{} {}: '{}'", flag, rule, value));
}

// Digits only: no sign, unlike base::parse_integer().
std::optional<int64_t> parse_digits(std::string_view text, int64_t lowest, int64_t highest) {
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front()))) return std::nullopt;
  const std::optional<int64_t> value = base::parse_integer(text);
  if (!value || *value < lowest || *value > highest) return std::nullopt;
  return value;
}

// N, N-M or N-M:STEP.
bool is_array_item(std::string_view item) {
  const size_t dash = item.find('-');
  const std::optional<int64_t> first = parse_digits(item.substr(0, dash), 0, kMaxTask);
  if (!first) return false;
  if (dash == std::string_view::npos) return true;
  std::string_view rest = item.substr(dash + 1);
  const size_t colon = rest.find(':');
  const std::optional<int64_t> last = parse_digits(rest.substr(0, colon), *first, kMaxTask);
  if (!last) return false;
  return colon == std::string_view::npos || parse_digits(rest.substr(colon + 1), 1, kMaxTask).has_value();
}

bool is_array(std::string_view text) {
  const size_t percent = text.find('%');
  if (percent != std::string_view::npos && !parse_digits(text.substr(percent + 1), 1, kMaxTask)) return false;
  text = text.substr(0, percent);
  while (true) {
    const size_t comma = text.find(',');
    if (!is_array_item(text.substr(0, comma))) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

bool is_signal_name(std::string_view name) {
  if (parse_digits(name, 1, SIGRTMAX)) return true;
  if (name.substr(0, 3) == "SIG") name.remove_prefix(3);
  for (int number = 1; number < NSIG; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && name == known) return true;
  }
  return false;
}

}  // namespace

bool is_line(std::string_view value) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return !value.empty() && value.size() <= kMaxValueBytes &&
         std::none_of(value.begin(), value.end(), is_control);
}

int parse_count(std::string_view flag, const std::string& value) {
  const std::optional<int64_t> count = parse_digits(value, 1, kMaxCount);
  if (!count) fail(flag, fmt::format("must be a whole number from 1 to {}", kMaxCount), value);
  return static_cast<int>(*count);
}

void check_count(std::string_view flag, int value) { parse_count(flag, std::to_string(value)); }

void check_line(std::string_view flag, const std::string& value) {
  if (!is_line(value))
    fail(flag, fmt::format("must be one line of 1 to {} bytes without control characters", kMaxValueBytes),
         value);
}

void check_name(std::string_view flag, const std::string& value) {
  check_line(flag, value);
  if (value.find(' ') != std::string::npos || value.front() == '-')
    fail(flag, "must be a name, or names with commas between them, without spaces", value);
}

void check_time(std::string_view flag, const std::string& value) {
  if (value == "UNLIMITED" || cluster::parse_time_limit(value)) return;
  fail(flag,
       "must be minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, "
       "days-hours:minutes:seconds or UNLIMITED, and more than 0",
       value);
}

void check_memory(std::string_view flag, const std::string& value) {
  std::string_view digits = value;
  if (!digits.empty() && std::strchr("KMGTkmgt", digits.back()) != nullptr) digits.remove_suffix(1);
  if (!parse_digits(digits, 0, int64_t{1} << 40))
    fail(flag, "must be a whole number of MiB, or one with the suffix K, M, G or T; 0 is the whole node",
         value);
}

void check_array(std::string_view flag, const std::string& value) {
  if (!is_array(value))
    fail(
        flag,
        fmt::format("must be indices (0 to {}) and ranges with commas between them, a range as FIRST-LAST or "
                    "FIRST-LAST:STEP, and at the end %LIMIT for the most tasks at once",
                    kMaxTask),
        value);
}

void check_signal(std::string_view flag, const std::string& value) {
  if (value.substr(0, 2) == "B:")
    fail(flag, "must not begin with B:, which sends it to the batch shell and not to the ranks", value);
  const size_t at = value.find('@');
  const std::string_view name = std::string_view(value).substr(0, at);
  const bool time_is_right =
      at == std::string::npos || parse_digits(std::string_view(value).substr(at + 1), 0, kMaxSignalTime);
  if (!is_signal_name(name) || !time_is_right)
    fail(
        flag,
        fmt::format("must be a signal's name or number, then @SECONDS before the end (0 to {}) if wanted, as "
                    "USR1@120",
                    kMaxSignalTime),
        value);
}

int parse_gpus(std::string_view flag, const std::string& value) {
  const size_t colon = value.rfind(':');
  const std::string_view count = std::string_view(value).substr(colon == std::string::npos ? 0 : colon + 1);
  const std::optional<int64_t> number = parse_digits(count, 1, 1024);
  const std::string type = colon == std::string::npos ? "any" : value.substr(0, colon);
  if (!number || type.empty() || type.find_first_of(" ,:=") != std::string::npos)
    fail(flag, "must be a number from 1 to 1024, or TYPE:NUMBER as a100:4", value);
  check_line(flag, value);
  return static_cast<int>(*number);
}

namespace {

// The parts of a text between separators.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

template <size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

}  // namespace

int parse_gres(std::string_view flag, const std::string& value) {
  constexpr const char* kRule =
      "must be NAME, NAME:NUMBER or NAME:TYPE:NUMBER as gpu:2, with commas between them";
  check_name(flag, value);
  int gpus = 0;
  for (const std::string& item : split(value, ',')) {
    const std::vector<std::string> parts = split(item, ':');
    if (parts.size() > 3 || std::count(parts.begin(), parts.end(), "") > 0) fail(flag, kRule, value);
    if (parts.front() != "gpu") continue;
    // "gpu:a100" is one GPU of this type.
    const std::optional<int64_t> number = parse_digits(parts.back(), 1, 1024);
    if (parts.size() == 3 && !number) fail(flag, kRule, value);
    gpus += static_cast<int>(number.value_or(1));
  }
  return gpus;
}

void check_mail_type(std::string_view flag, const std::string& value) {
  constexpr std::array<std::string_view, 13> kTypes{
      "NONE",          "BEGIN",          "END",        "FAIL",       "REQUEUE",
      "ALL",           "INVALID_DEPEND", "STAGE_OUT",  "TIME_LIMIT", "TIME_LIMIT_90",
      "TIME_LIMIT_80", "TIME_LIMIT_50",  "ARRAY_TASKS"};
  for (std::string type : split(value, ',')) {
    std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::toupper(c); });
    if (!is_one_of(type, kTypes)) {
      fail(flag,
           fmt::format("must be one of {}, or several with commas between them", fmt::join(kTypes, ", ")),
           value);
    }
  }
}

namespace {

bool lists_cpus(std::string_view cpu_bind) {
  return cpu_bind.find("map_") != std::string_view::npos || cpu_bind.find("mask_") != std::string_view::npos;
}

}  // namespace

void check_cpu_bind(std::string_view flag, const std::string& value) {
  constexpr std::array<std::string_view, 11> kTypes{"none",    "cores", "threads",   "sockets",
                                                    "ldoms",   "rank",  "rank_ldom", "boards",
                                                    "verbose", "quiet", "map_ldom"};
  constexpr std::array<std::string_view, 4> kLists{"map_cpu:", "mask_cpu:", "map_ldom:", "mask_ldom:"};
  check_line(flag, value);
  std::string rest = value;
  for (const char* prefix : {"verbose,", "v,", "quiet,", "q,"}) {
    if (rest.rfind(prefix, 0) == 0) rest.erase(0, std::strlen(prefix));
  }
  for (const std::string_view list : kLists) {
    const bool matches = rest.rfind(list, 0) == 0;
    if (matches && rest.find_first_not_of("0123456789abcdefABCDEFx*,", list.size()) == std::string::npos &&
        rest.size() > list.size())
      return;
  }
  if (!is_one_of(rest, kTypes) || rest == "map_ldom")
    fail(flag,
         "must be none, cores, threads, sockets, ldoms, rank, rank_ldom, or a list as map_cpu:1,9 or "
         "mask_cpu:fe,fe00, after verbose, or quiet, if wanted",
         value);
}

void check_bind(std::string_view flag, const std::string& value) {
  check_line(flag, value);
  const std::vector<std::string> parts = split(value, ':');
  // A comma would begin another bind.
  if (parts.size() > 3 || parts.front().empty() || value.find(',') != std::string::npos)
    fail(flag, "must be FOLDER, FOLDER:IN_CONTAINER or FOLDER:IN_CONTAINER:ro, without commas", value);
}

namespace {

// Options of sbatch that a flag of `lockstep slurm` sets.
constexpr std::array<std::string_view, 23> kOwnOptions{
    "nodes",     "ntasks-per-node", "cpus-per-task", "gpus-per-node", "gpus",     "gres",   "mem",
    "time",      "partition",       "account",       "array",         "job-name", "output", "error",
    "mail-type", "mail-user",       "exclusive",     "hint",          "requeue",  "signal", "open-mode",
    "wait",      "test-only"};
// Options that the script cannot work with: its counts come from nodes and ranks of each node.
constexpr std::array<std::string_view, 5> kContradictingOptions{"ntasks", "wrap", "ntasks-per-gpu",
                                                                "gpus-per-task", "export"};

// The name in "--constraint=a100".
std::string sbatch_option_name(std::string_view value) {
  if (value.substr(0, 2) == "--") value.remove_prefix(2);
  return std::string(value.substr(0, value.find('=')));
}

}  // namespace

void check_sbatch_option(std::string_view flag, const std::string& value) {
  check_line(flag, value);
  const std::string name = sbatch_option_name(value);
  constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-";
  const bool is_name =
      name.size() > 1 && name.front() != '-' && name.find_first_not_of(kNameCharacters) == std::string::npos;
  if (!is_name) fail(flag, "must be the long name of an option, as constraint=a100 or --no-kill", value);
  if (is_one_of(name, kOwnOptions))
    fail(flag, fmt::format("must not set {0}, use lockstep slurm --{0}", name), value);
  if (is_one_of(name, kContradictingOptions))
    fail(flag, fmt::format("must not set {}, which contradicts the script's own lines", name), value);
}

// --- the request ---

namespace {

void check_texts(const SbatchRequest& request) {
  using Check = void (*)(std::string_view, const std::string&);
  struct Rule {
    const char* flag;
    const std::string& value;
    Check check;
  };
  const Rule rules[] = {{"--mem", request.mem, check_memory},
                        {"--time", request.time, check_time},
                        {"--partition", request.partition, check_name},
                        {"--account", request.account, check_name},
                        {"--array", request.array, check_array},
                        {"--job-name", request.job_name, check_line},
                        {"--output", request.output, check_line},
                        {"--signal", request.signal, check_signal},
                        {"--error", request.error, check_line},
                        {"--mail-type", request.mail_type, check_mail_type},
                        {"--mail-user", request.mail_user, check_name},
                        {"--cpu-bind", request.cpu_bind, check_cpu_bind},
                        {"--container", request.container, check_line},
                        {"--conda", request.conda, check_line},
                        {"--venv", request.venv, check_line}};
  for (const Rule& rule : rules) {
    if (!rule.value.empty()) rule.check(rule.flag, rule.value);
  }
  // The log file is named after the job, and Slurm does not create folders.
  if (request.output.empty() && request.job_name.find('/') != std::string::npos) {
    throw ConfigError("slurm",
                      fmt::format("--job-name must hold no '/' unless --output says where the log goes: '{}'",
                                  request.job_name));
  }
  for (const std::string& module : request.modules) check_name("--module", module);
  for (const std::string& bind : request.binds) check_bind("--bind", bind);
  for (const std::string& option : request.sbatch_options) check_sbatch_option("--sbatch-option", option);
}

void check_gpus(const SbatchRequest& request) {
  const std::array<std::pair<const char*, const std::string*>, 3> ways{
      {{"--gpus-per-node", &request.gpus_per_node}, {"--gpus", &request.gpus}, {"--gres", &request.gres}}};
  std::string first;
  for (const auto& [flag, value] : ways) {
    const bool asks = flag == std::string("--gres") ? !value->empty() && parse_gres(flag, *value) > 0
                                                    : !value->empty() && parse_gpus(flag, *value) > 0;
    if (!asks) continue;
    const std::string text = fmt::format("{}={}", flag, *value);
    if (!first.empty()) {
      throw ConfigError("slurm", fmt::format("GPUs are asked for twice, leave one out: {}, {}", first, text));
    }
    first = text;
  }
  if (request.gpus.empty()) return;
  const int gpus = parse_gpus("--gpus", request.gpus);
  if (gpus % request.nodes != 0) {
    throw ConfigError("slurm",
                      fmt::format("--gpus must be divisible by --nodes, so that each node gets as many: "
                                  "--gpus={}, --nodes={}",
                                  request.gpus, request.nodes));
  }
}

// Flags of which each is right and both together are not.
void check_combinations(const SbatchRequest& request) {
  const auto refuse = [](const std::string& text) { throw ConfigError("slurm", text); };
  if (!request.conda.empty() && !request.venv.empty())
    refuse("--conda and --venv are two environments for one program: leave out one of them");
  if (!request.binds.empty() && request.container.empty())
    refuse("--bind has no effect without --container: add --container, or leave out --bind");
  if (!request.mail_user.empty() && request.mail_type.empty())
    refuse(
        "--mail-user has no effect without --mail-type: add --mail-type=BEGIN,END, or leave out --mail-user");
  if (!request.hint.empty() && !request.cpu_bind.empty())
    refuse(
        "--hint and --cpu-bind both bind the ranks to CPUs, and srun refuses them together: leave out one");
  if (lists_cpus(request.cpu_bind) && request.style != SlurmStyle::kSrun) {
    refuse(
        fmt::format("--cpu-bind lists the CPUs of each rank, which needs a task for each rank: add --style "
                    "srun: '{}'",
                    request.cpu_bind));
  }
}

void check_command(const SbatchRequest& request) {
  if (request.command.empty() || request.command.front().empty()) {
    throw ConfigError("slurm", "the program is missing: lockstep slurm [flags] -- PROGRAM ARGUMENTS");
  }
  if (request.command.front().front() == '-') {
    throw ConfigError("slurm", fmt::format("the program must not begin with a dash, write it as ./{}: '{}'",
                                           request.command.front(), request.command.front()));
  }
}

std::string gpus_text(int count) { return fmt::format("{} GPU{}", count, count == 1 ? "" : "s"); }

}  // namespace

int SbatchRequest::num_gpus_per_node() const {
  if (!gpus_per_node.empty()) return parse_gpus("--gpus-per-node", gpus_per_node);
  if (!gpus.empty()) return parse_gpus("--gpus", gpus) / nodes;
  return gres.empty() ? 0 : parse_gres("--gres", gres);
}

int SbatchRequest::ranks_per_node() const {
  return ntasks_per_node ? *ntasks_per_node : std::max(1, num_gpus_per_node());
}

void check_request(const SbatchRequest& request) {
  check_command(request);
  check_count("--nodes", request.nodes);
  if (request.ntasks_per_node) check_count("--ntasks-per-node", *request.ntasks_per_node);
  if (request.cpus_per_task) check_count("--cpus-per-task", *request.cpus_per_task);
  check_texts(request);
  check_gpus(request);
  check_combinations(request);
  const int gpus = request.num_gpus_per_node();
  if (request.gpu_vendor && gpus == 0) {
    throw ConfigError("slurm",
                      "--gpu-vendor has no effect without --gpus-per-node: add --gpus-per-node, or leave out "
                      "--gpu-vendor");
  }
  if (gpus > 0 && request.ranks_per_node() > gpus) {
    throw ConfigError("slurm",
                      fmt::format("two ranks would share one GPU, ask for --gpus-per-node={}: "
                                  "--ntasks-per-node={}, {} of each node",
                                  request.ranks_per_node(), request.ranks_per_node(), gpus_text(gpus)));
  }
}

std::vector<std::string> request_warnings(const SbatchRequest& request) {
  std::vector<std::string> warnings;
  const int gpus = request.num_gpus_per_node();
  const int ranks = request.ranks_per_node();
  if (gpus > ranks) {
    warnings.push_back(fmt::format(
        "each node has {} and {} rank{}, and a rank uses one GPU: ask for --ntasks-per-node={} or "
        "--gpus-per-node={}",
        gpus_text(gpus), ranks, ranks == 1 ? "" : "s", gpus, ranks));
  }
  if (gpus == 1 && request.nodes > 1) {
    warnings.push_back(
        fmt::format("{} nodes with one GPU each: gradients then always cross the network. Use all GPUs of a "
                    "node before a "
                    "second node, as --nodes=1 --gpus-per-node={}",
                    request.nodes, request.nodes));
  }
  return warnings;
}

// --- the script ---

namespace {

bool has_gpus(const SbatchRequest& request) { return request.num_gpus_per_node() > 0; }
bool has_amd_gpus(const SbatchRequest& request) { return request.gpu_vendor == GpuVendor::kAmd; }
bool one_task_per_node(const SbatchRequest& request) { return request.style != SlurmStyle::kSrun; }
bool knows_gpu_options(const SbatchRequest& request) {
  return !request.version || has_gpu_options(*request.version);
}

std::string_view style_text(SlurmStyle style) {
  switch (style) {
    case SlurmStyle::kTorchrun:
      return "# On each node one task runs `lockstep run`, which starts the node's ranks, watches\n"
             "# them and can start them again.\n";
    case SlurmStyle::kSrun: return "# srun starts each rank as a task of its own.\n";
    case SlurmStyle::kSpawn:
      return "# On each node one task runs the program, which starts the node's other ranks itself\n"
             "# (lockstep::launch).\n";
  }
  return "";
}

std::string heading(const SbatchRequest& request) {
  // Only a login shell is certain to define `module`.
  const bool uses_modules = request.module_purge || !request.modules.empty();
  std::string text = uses_modules ? "#!/bin/bash -l\n" : "#!/bin/bash\n";
  text += fmt::format("# Written by `lockstep slurm` {} for {}.\n", kVersion,
                      request.version ? "Slurm " + request.version->to_string() : "any version of Slurm");
  return text + std::string(style_text(request.style));
}

std::string directive(std::string_view flag, std::string_view value) {
  return fmt::format("#SBATCH --{}={}\n", flag, directive_quote(value));
}

std::string optional_directive(std::string_view flag, std::string_view value) {
  return value.empty() ? "" : directive(flag, value);
}

std::string job_name(const SbatchRequest& request) {
  if (!request.job_name.empty()) return request.job_name;
  std::string name = std::filesystem::path(request.command.front()).filename().string();
  // A program may have any file name; one that no directive can hold is not used.
  return is_line(name) ? name : "lockstep";
}

std::string naming(const SbatchRequest& request) {
  const std::string standard = request.array.empty() ? "%x-%j.out" : "%x-%A_%a.out";
  std::string text = "\n" + directive("job-name", job_name(request));
  text += optional_directive("partition", request.partition);
  text += optional_directive("account", request.account);
  text += optional_directive("array", request.array);
  text += directive("output", request.output.empty() ? standard : request.output);
  text += optional_directive("error", request.error);
  text += "# A restarted job appends to the same file.\n";
  text += directive("open-mode", "append");
  return text + optional_directive("mail-type", request.mail_type) +
         optional_directive("mail-user", request.mail_user);
}

std::string gpu_directive(const SbatchRequest& request) {
  // --gres may name GPUs, or only other resources.
  std::string gres = optional_directive("gres", request.gres);
  const std::string& text = request.gpus.empty() ? request.gpus_per_node : request.gpus;
  if (text.empty()) return gres;
  if (!request.gpus.empty() && knows_gpu_options(request)) return gres + directive("gpus", request.gpus);
  const std::string type = text.substr(0, text.rfind(':') == std::string::npos ? 0 : text.rfind(':') + 1);
  const std::string of_a_node = type + std::to_string(request.num_gpus_per_node());
  if (knows_gpu_options(request)) return gres + directive("gpus-per-node", of_a_node);
  return directive("gres", "gpu:" + of_a_node + (request.gres.empty() ? "" : "," + request.gres));
}

std::string resources(const SbatchRequest& request) {
  std::string text =
      "\n# The allocation. Below, counts come from Slurm's variables: change them only here.\n";
  text += directive("nodes", std::to_string(request.nodes));
  text += "# Ranks on each node.\n";
  text += directive("ntasks-per-node", std::to_string(request.ranks_per_node()));
  text += gpu_directive(request);
  if (request.cpus_per_task) {
    text += "# Of each rank.\n" + directive("cpus-per-task", std::to_string(*request.cpus_per_task));
  }
  text += optional_directive("mem", request.mem);
  if (request.exclusive) text += "#SBATCH --exclusive\n";
  text += optional_directive("hint", request.hint);
  return text + optional_directive("time", request.time);
}

std::string other_options(const SbatchRequest& request) {
  std::string text;
  for (const std::string& option : request.sbatch_options) {
    const std::string name = sbatch_option_name(option);
    const size_t equals = option.find('=');
    text +=
        equals == std::string::npos ? "#SBATCH --" + name + "\n" : directive(name, option.substr(equals + 1));
  }
  return text.empty() ? "" : "\n" + text;
}

std::string ending(const SbatchRequest& request) {
  std::string text;
  if (!request.signal.empty()) {
    text += "\n# Sent to the ranks before the time is up; Slurm may send it a minute early.\n";
    text += directive("signal", request.signal);
  }
  if (request.requeue) {
    text +=
        "\n# May be started again, with the same job id: after preemption, and by the last lines below.\n";
    text += "#SBATCH --requeue\n";
  }
  return text;
}

std::string modules(const SbatchRequest& request) {
  std::string text;
  if (request.module_purge) text += "module purge\n";
  for (const std::string& module : request.modules) {
    text += fmt::format("module load {} || exit\n", shell_quote(module));
  }
  return text.empty() ? "" : "\n" + text;
}

// The lines that activate the program's environment, outside a container.
std::string activation(const SbatchRequest& request) {
  if (!request.container.empty()) return "";
  if (!request.conda.empty()) {
    return fmt::format(
        "\n# conda defines its function only in interactive shells, or where this line runs.\n"
        "eval \"$(conda shell.bash hook)\" || exit\n"
        "conda activate {} || exit\n",
        shell_quote(request.conda));
  }
  if (request.venv.empty()) return "";
  return fmt::format("\n# shellcheck disable=SC1091\nsource {} || exit\n",
                     shell_quote(request.venv + "/bin/activate"));
}

// Whether the script has to pass --cpus-per-task to srun. With an unknown version it does, which
// does no harm.
bool must_pass_cpus(const SbatchRequest& request) {
  if (!request.cpus_per_task || one_task_per_node(request)) return false;
  return !request.version || srun_forgets_cpus_per_task(*request.version);
}

std::string environment(const SbatchRequest& request) {
  std::string text =
      "\n# sbatch copies the submitting shell's environment. It must not hold the ranks and ports of\n"
      "# another job; the ranks agree on their own port.\n"
      "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_NPROCS "
      "SRUN_CPUS_PER_TASK\n"
      "\n# The job's secret: only processes that know it can join. It is passed in the environment, which\n"
      "# only this user's processes can read.\n"
      ": \"${LOCKSTEP_JOB_TOKEN:=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')}\"\n"
      "export LOCKSTEP_JOB_TOKEN\n";
  if (must_pass_cpus(request)) {
    text +=
        "\n# srun of Slurm 22.05 to 23.02 ignores --cpus-per-task: every rank would run on one core.\n"
        "export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n";
  }
  if (request.style == SlurmStyle::kSpawn) {
    text +=
        "\n# How many ranks the program starts over all nodes; the same as its flag --nprocs.\n"
        "export LOCKSTEP_NPROCS=\"$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))\"\n";
  }
  return text;
}

std::string container(const SbatchRequest& request) {
  if (request.container.empty()) return "";
  std::string text = "\n# The program runs inside the container, srun and the launcher outside.\n";
  if (!request.venv.empty() || !request.conda.empty()) {
    text +=
        "# The shell in between activates the environment. On LUMI, WITH_CONDA in the container is the "
        "command\n"
        "# that activates the container's own one first.\n";
  }
  return text +
         "runtime=$(command -v apptainer || command -v singularity) || {\n"
         "  echo 'lockstep: neither apptainer nor singularity is here' >&2\n"
         "  exit 1\n"
         "}\n";
}

// Brings the driver's devices and libraries into the container.
std::string_view gpu_flag(const SbatchRequest& request) {
  if (!has_gpus(request)) return "";
  return has_amd_gpus(request) ? "--rocm " : "--nv ";
}

// A shell inside the container, which activates the environment and then becomes the program.
std::string container_shell(const SbatchRequest& request) {
  if (request.venv.empty() && request.conda.empty()) return "";
  const std::string activate = request.venv.empty()
                                   ? R"sh(eval "$(conda shell.bash hook)" && conda activate "$0")sh"
                                   : R"sh(source "$0/bin/activate")sh";
  const std::string body = "${WITH_CONDA:-:} && " + activate + R"( && exec "$@")";
  return fmt::format("bash -c {} {} ", shell_quote(body),
                     shell_quote(request.venv.empty() ? request.conda : request.venv));
}

std::string bind_flags(const SbatchRequest& request) {
  std::string text;
  for (const std::string& bind : request.binds) text += shell_quote("--bind=" + bind) + " ";
  return text;
}

std::string command_words(const SbatchRequest& request) {
  std::string text;
  if (request.style == SlurmStyle::kTorchrun) {
    text += shell_quote(request.launcher) + " run --nproc-per-node=\"$SLURM_NTASKS_PER_NODE\" ";
  }
  if (!request.container.empty()) {
    text += fmt::format("\"$runtime\" exec {}{}{} {}", gpu_flag(request), bind_flags(request),
                        shell_quote(request.container), container_shell(request));
  }
  for (const std::string& word : request.command) text += shell_quote(word) + " ";
  text.pop_back();
  return text;
}

bool binds_gpus(const SbatchRequest& request) { return has_gpus(request) && knows_gpu_options(request); }

// --gpu-bind=none has side effects (see the text), so it is used only if something would bind.
std::string gpu_binding(const SbatchRequest& request) {
  if (!binds_gpus(request)) return "";
  return fmt::format(
      "\n# Each rank sees all GPUs that its node gives the job, so that they can copy to each other "
      "directly.\n"
      "# Where the site or the environment binds each task to one, that is turned off; not elsewhere, "
      "since\n"
      "# this also unsets {}_VISIBLE_DEVICES, which keeps two jobs of one node apart.\n"
      "gpu_bind=\n"
      "if [ -n \"${{SLURM_GPU_BIND:-}}${{SLURM_GPUS_PER_TASK:-}}${{SLURM_NTASKS_PER_GPU:-}}\" ]; then\n"
      "  gpu_bind=--gpu-bind=none\n"
      "fi\n",
      has_amd_gpus(request) ? "ROCR" : "CUDA");
}

std::string srun(const SbatchRequest& request) {
  std::string text =
      "\n# A rank that fails ends the others at once; a rank that finishes early does not. Both flags are\n"
      "# given because sites change the defaults.\n";
  std::string flags = "--kill-on-bad-exit=1 --wait=0";
  if (binds_gpus(request)) flags += " ${gpu_bind:+\"$gpu_bind\"}";
  if (!request.cpu_bind.empty()) flags += " " + shell_quote("--cpu-bind=" + request.cpu_bind);
  if (one_task_per_node(request)) {
    text += "# One task per node, with the CPUs of all ranks of the node.\n";
    flags +=
        " \\\n  --ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1"
        " \\\n  --cpus-per-task=\"$((${SLURM_CPUS_PER_TASK:-1} * SLURM_NTASKS_PER_NODE))\"";
  }
  return text + fmt::format("srun {} \\\n  {}\nstatus=$?\n", flags, command_words(request));
}

std::string requeue(const SbatchRequest& request) {
  if (!request.requeue) return "";
  return fmt::format(
      "\n# {} means: asked to stop, saved, ready to resume. The task of an array is named by the array.\n"
      "if [ \"$status\" -eq {} ]; then\n"
      "  job=\"$SLURM_JOB_ID\"\n"
      "  if [ -n \"${{SLURM_ARRAY_JOB_ID:-}}\" ]; then "
      "job=\"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}\"; fi\n"
      "  echo \"lockstep: the job has saved and is queued again: $job\"\n"
      "  scontrol requeue \"$job\" || echo \"lockstep: it could not be queued again: $job\" >&2\n"
      "fi\n",
      kExitPreempted, kExitPreempted);
}

}  // namespace

std::string sbatch_script(const SbatchRequest& request) {
  check_request(request);
  std::string text = heading(request) + naming(request) + resources(request) + ending(request);
  text += other_options(request) + modules(request) + activation(request) + environment(request);
  text += container(request);
  text +=
      "\necho \"lockstep: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, started again ${SLURM_RESTART_COUNT:-0} "
      "times\"\n";
  text += gpu_binding(request) + srun(request) + requeue(request);
  return text + "\nexit \"$status\"\n";
}

}  // namespace lockstep::launcher
