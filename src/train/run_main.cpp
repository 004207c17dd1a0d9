#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "launch/error_file.h"
#include "train/main_rank.h"

#include <c10/util/Exception.h>

namespace lockstep {
namespace {

// torchrun and `lockstep run` read this file to tell why a worker failed.
void leave_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  launcher::write_error_file(path, {.message = message, .timestamp_s = seconds});
}

int leave(const std::string& message, int status) {
  try {
    leave_error_file(message);
  } catch (const std::exception& error) {
    base::log_warning("launch", "the error file was not written: {}", error.what());
  }
  return status;
}

int print_and_leave(const std::string& message, int status) {
  const std::string line = base::log_prefix() + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return leave(message, status);
}

}  // namespace

int run_main(const std::function<int()>& body) noexcept {
  try {
    return body();
  } catch (const HelpRequested& help) {
    std::fputs(help.what(), stdout);
    return kExitSuccess;
  } catch (const train::SaidElsewhere& error) {
    return leave(error.what(), kExitUsage);
  } catch (const ConfigError& error) {
    return print_and_leave(error.what(), kExitUsage);
  } catch (const Preempted& preempted) {
    // All ranks leave, one of them says so. No error file: nothing has failed.
    base::log_info("launch", "{}", preempted.what());
    return kExitPreempted;
  } catch (const CommError& error) {
    return print_and_leave(error.what(), kExitCommunication);
  } catch (const InternalError& error) {
    return print_and_leave(error.what(), kExitInternal);
  } catch (const c10::Error& error) {
    return print_and_leave(fmt::format("[libtorch] {}", error.what_without_backtrace()), kExitFailure);
  } catch (const std::exception& error) {
    return print_and_leave(fmt::format("[program] {}", error.what()), kExitFailure);
  } catch (...) {
    return print_and_leave("[program] an exception that is no std::exception", kExitFailure);
  }
}

}  // namespace lockstep
