#include "launch/agent/run_job.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/exit_status.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/log.h"
#include "launch/agent/agent.h"
#include "launch/agent/failure_report.h"
#include "launch/agent/meeting.h"
#include "launch/error_file.h"
#include "launch/signal_queue.h"

namespace lockstep::launcher {
namespace {

// Whoever started us may want to know as we do: torchrun's launchers nest.
void tell_failure(const JobFailure& failure) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  try {
    if (failure.error_file.empty()) {
      const std::string message =
          failure.kind == JobFailure::Kind::kNode ? failure.message : failure.state.to_string();
      write_error_file(path, {.message = message, .timestamp_s = failure.time_us / 1'000'000});
    } else {
      pass_error_file_on(path, failure.error_file,
                         failure.state.signaled ? -failure.state.code : failure.state.code);
    }
  } catch (const Error& error) {
    base::log_warning("run", "the error file was not written: {}", error.what());
  }
}

int report(const Agent& agent, const RunOptions& options, Console& err) {
  if (const std::string logs = agent.kept_logs(); !logs.empty() && !options.quiet) {
    err.write(fmt::format("[run] log files: {}\n", logs));
  }
  if (!agent.outcome()) return kExitInternal;
  // Copies of one program that agree that what they were given is wrong have said so.
  const bool is_said = options.pass_streams && agent.all_refused();
  const std::string outcome = is_said ? "" : format_outcome(options.component, *agent.outcome());
  const size_t line = outcome.find('\n');
  err.write(err.is_decorated() && !outcome.empty()
                ? fmt::format("\x1b[1;31m{}\x1b[0m{}", outcome.substr(0, line), outcome.substr(line))
                : outcome);
  if (agent.outcome()->failure) tell_failure(*agent.outcome()->failure);
  return agent.outcome()->status();
}

}  // namespace

int run_job(const RunOptions& options) {
  // A reader that goes away is an error of write(2), not an end of the job.
  ::signal(SIGPIPE, SIG_IGN);
  Keeper keeper;
  base::EventLoop loop;
  StatusLine status;
  Console out(loop, STDOUT_FILENO, status), err(loop, STDERR_FILENO, status);
  Agent agent(loop, options, keeper, {out, err});
  const std::unique_ptr<Membership> membership = join_job(loop, options, agent, keeper);
  agent.join(*membership);
  loop.run();
  keep_status_despite_sigterm();
  return report(agent, options, err);
}

}  // namespace lockstep::launcher
