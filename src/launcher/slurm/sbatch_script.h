#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace lockstep::launcher {

// A release of Slurm: year and month. Releases need different batch scripts.
struct SlurmVersion {
  int year = 0;
  int month = 0;

  bool operator==(const SlurmVersion&) const = default;
  bool operator<(const SlurmVersion& other) const {
    return year != other.year ? year < other.year : month < other.month;
  }
  std::string to_string() const;  // "22.05"
};

// Reads "22.05", "22.05.8", "slurm 22.05.8" and "slurm-wlm 22.05.8". nullopt: any other text.
std::optional<SlurmVersion> parse_slurm_version(std::string_view text);

// Asks sbatch, else scontrol; nullopt: neither exists or answers. Blocks for at most 20 s.
std::optional<SlurmVersion> installed_slurm_version(const base::Environment& environment);

// Whether srun ignores the --cpus-per-task of its batch script: 22.05 up to 23.02.
bool srun_forgets_cpus_per_task(const SlurmVersion& version);
// Whether --gpus-per-node and --gpu-bind exist: since 19.05, before it --gres=gpu:N.
bool has_gpu_options(const SlurmVersion& version);

// What starts the ranks inside the allocation, which is the same for all three.
enum class SlurmStyle {
  kTorchrun,  // one task per node runs `lockstep run`, which starts and restarts the ranks
  kSrun,      // one task per rank, started by srun
  kSpawn,     // one task per node runs the program, which starts the rest by lockstep::launch
};

// Who made the GPUs of the nodes.
enum class GpuVendor { kNvidia, kAmd };

// A job as the user describes it; text fields hold Slurm's own syntax, "" is "not given".
struct SbatchRequest {
  std::vector<std::string> command;  // the program and its arguments, at least the first
  SlurmStyle style = SlurmStyle::kTorchrun;

  int nodes = 1;
  // At most one of these three.
  std::string gpus_per_node;            // "4" or "a100:4"
  std::string gpus;                     // of all nodes together; divisible by their number
  std::string gres;                     // generic resources of each node: "gpu:a100:2,nvme:1"
  std::optional<GpuVendor> gpu_vendor;  // left out: NVIDIA
  std::optional<int> ntasks_per_node;   // ranks per node; left out: one per GPU, else one
  std::optional<int> cpus_per_task;     // of each rank
  std::string mem;                      // of each node
  bool exclusive = false;               // no other job on the nodes
  std::string hint;                     // "nomultithread"
  std::string cpu_bind;                 // of srun: "cores", "mask_cpu:fe,fe00"
  std::string time;
  std::string partition;
  std::string account;
  std::string array;
  std::string job_name;   // left out: the program's name
  std::string output;     // left out: NAME-JOB.out
  std::string error;      // standard error; left out: in `output`
  std::string mail_type;  // "BEGIN,END"
  std::string mail_user;
  std::string signal;  // "USR1@120": sent to the ranks this many seconds before the end
  bool requeue = false;

  std::string container;             // an image for apptainer or singularity
  std::vector<std::string> binds;    // of the container: "/scratch", "/scratch:/data:ro"
  bool module_purge = false;         // unload the modules of the submitting shell first
  std::vector<std::string> modules;  // loaded in this order
  // The environment of the program, at most one: a name or folder for `conda activate`; the folder of a
  // Python virtual environment. In a container they are the container's.
  std::string conda;
  std::string venv;

  // Other options of sbatch: "reservation=tutorial", "--constraint=a100".
  std::vector<std::string> sbatch_options;

  std::optional<SlurmVersion> version;  // nullopt: unknown; the script suits all of them
  std::string launcher = "lockstep";    // the command `lockstep` on the nodes

  // GPUs of each node; 0: none. REQUIRES: check_request() passed.
  int num_gpus_per_node() const;
  // Ranks on each node. REQUIRES: check_request() passed.
  int ranks_per_node() const;
};

// ConfigError names the first flag whose value Slurm would reject or misread, the value, and what
// is allowed.
void check_request(const SbatchRequest& request);

// What works but is rarely intended, one sentence each: GPUs without a rank, one GPU on each of several
// nodes. REQUIRES: check_request() passed.
std::vector<std::string> request_warnings(const SbatchRequest& request);

// --- The grammar of single values ---
//
// Each throws ConfigError with flag, value and what is allowed; none accepts the empty text.

// One line of any text: not empty, no control characters, at most 4096 bytes.
bool is_line(std::string_view value);

// From 1 to 1048576.
void check_count(std::string_view flag, int value);
int parse_count(std::string_view flag, const std::string& value);
// is_line().
void check_line(std::string_view flag, const std::string& value);
// A name of the site, or several with commas: no spaces, no leading dash.
void check_name(std::string_view flag, const std::string& value);
// "30", "1:30:00", "2-12", "UNLIMITED".
void check_time(std::string_view flag, const std::string& value);
// "4000", "16G"; "0" is the whole node.
void check_memory(std::string_view flag, const std::string& value);
// "0-15", "1,3,5-9:2", "0-99%4".
void check_array(std::string_view flag, const std::string& value);
// "USR1", "SIGUSR2@120", "10@60". "B:" is refused: it would reach the batch shell only.
void check_signal(std::string_view flag, const std::string& value);
// The count of "4" or "a100:4".
int parse_gpus(std::string_view flag, const std::string& value);
// The GPUs of "gpu:2", "nvme:1,gpu:a100:2"; 0: it names none.
int parse_gres(std::string_view flag, const std::string& value);
// "BEGIN,END", in any case.
void check_mail_type(std::string_view flag, const std::string& value);
// "cores", "verbose,mask_cpu:fe,fe00".
void check_cpu_bind(std::string_view flag, const std::string& value);
// "/scratch", "/scratch:/data", "/scratch:/data:ro".
void check_bind(std::string_view flag, const std::string& value);
// "NAME" or "NAME=VALUE", with or without two dashes before it. Options that a flag of `lockstep slurm` sets
// are refused.
void check_sbatch_option(std::string_view flag, const std::string& value);

// --- Quoting ---

// The text as one word of a POSIX shell: all its bytes (quotes, spaces, newlines, `$`, backticks;
// not NUL) stay data. Returned unchanged if no shell could read it differently.
std::string shell_quote(std::string_view text);

// The text as a value of an #SBATCH line, where sbatch's own rules apply: a backslash escapes
// inside both kinds of quotes, '#' begins a comment, and no shell reads it. REQUIRES: no newline,
// which no quoting can hold there.
std::string directive_quote(std::string_view text);

// --- The script ---

// The commented batch script of the request, for the user to read and for sbatch to run. Pure.
// Checks the request first: ConfigError.
//
// Counts occur once, in the #SBATCH lines; everything below takes them from SLURM_* variables. No
// port is fixed, so that array tasks and several jobs on one node do not collide. The user's text
// never becomes shell syntax.
std::string sbatch_script(const SbatchRequest& request);

}  // namespace lockstep::launcher
