#pragma once

// The exceptions that the library throws, and the exit statuses that programs end with. The type of an
// exception says what failed: the user's input (ConfigError), a peer or the network (CommError), or the
// library itself (InternalError).
//
// Example:
//
//   try {
//     lockstep::TrainConfig{.max_iter = -1}.validate();
//   } catch (const lockstep::ConfigError& error) {
//     std::fprintf(stderr, "%s\n", error.what());  // [config] max_iter must be at least 0: -1
//   }
//
// More: docs/launch.md

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

// The base of all errors of the library. what() is "[component] sentence: values". The library throws
// and never exits: run_main() and launch() (lockstep/launch.h) print an Error with rank and host and
// return an exit status for main().
class Error : public std::runtime_error {
 public:
  Error(std::string_view component, std::string_view sentence);
};

// The user's input is wrong: a flag, a variable, a file, a model. A second attempt with the same input
// fails in the same way.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A peer or the network failed. The group that threw it is broken.
class CommError : public Error {
 public:
  // kRebuild: a peer died; a new group of the surviving ranks may work. kFatal: this process itself can
  // no longer communicate.
  enum class Recovery { kRebuild, kFatal };

  CommError(std::string_view component, std::string_view sentence, Recovery recovery,
            std::optional<int> failed_rank = std::nullopt);

  bool can_rebuild() const { return recovery_ == Recovery::kRebuild; }
  // The rank that died, left or did not arrive; nullopt: unknown.
  std::optional<int> failed_rank() const { return failed_rank_; }

 private:
  Recovery recovery_;
  std::optional<int> failed_rank_;
};

// A bug in Lockstep. Thrown by the checks in base/check.h; the text has both operands and the source
// location.
class InternalError : public Error {
 public:
  using Error::Error;
};

// The job was asked to stop and has saved its state: start it again to resume. Not a failure.
class Preempted : public Error {
 public:
  using Error::Error;
};

// The user asked for --help. Not a failure: what() is the text to print.
class HelpRequested : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Exit statuses of programs that end through launch() or run_main(), and of `lockstep run`. A process
// that starts ranks returns the status of the rank that failed first, or 128 + N if signal N ended that
// rank. Numbers above 64 are those of sysexits.h with the closest meaning.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;         // an exception of the program
inline constexpr int kExitUsage = 2;           // ConfigError: flags, variables, files
inline constexpr int kExitNodeLost = 69;       // a node was lost and too few are left
inline constexpr int kExitInternal = 70;       // InternalError
inline constexpr int kExitCommunication = 74;  // CommError: a peer or the network failed
inline constexpr int kExitPreempted = 75;      // Preempted: asked to stop, state is saved; start it again
inline constexpr int kExitRendezvous = 76;     // the launchers of a job did not find each other

}  // namespace lockstep
