#include "launch/slurm/slurm_version.h"

#include <fmt/format.h>

#include "base/number.h"
#include "base/program.h"

namespace lockstep::launcher {

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

}  // namespace lockstep::launcher
