#pragma once

// Errors, and the exit statuses that they become.
//
//   throw lockstep::ConfigError("data", "the folder is empty: 'data'");

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

// Everything the library throws derives from Error. The text is
// "[component] sentence: values". Libraries throw, only main exits; run_main() in
// lockstep/launch.h turns an Error into a message with rank and host and into an
// exit status.
class Error : public std::runtime_error {
 public:
  Error(std::string_view component, std::string_view sentence);
};

// The user's input is wrong: a flag, a variable, a file, a model. Trying again
// without changing it does not help.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A peer or the network failed.
class CommError : public Error {
 public:
  // Whether a new group of the surviving ranks may work (a peer died) or not
  // (this process itself cannot communicate any more).
  enum class Recovery { kRebuild, kFatal };

  CommError(std::string_view component, std::string_view sentence, Recovery recovery,
            std::optional<int> failed_rank = std::nullopt);

  bool can_rebuild() const { return recovery_ == Recovery::kRebuild; }
  // The rank that died, left or did not arrive, where it is known.
  std::optional<int> failed_rank() const { return failed_rank_; }

 private:
  Recovery recovery_;
  std::optional<int> failed_rank_;
};

// Lockstep itself is wrong. Made by the checks in base/check.h, which print both
// operands and the place.
class InternalError : public Error {
 public:
  using Error::Error;
};

// The job was asked to stop and has saved its state: start it again. Not a failure.
class Preempted : public Error {
 public:
  using Error::Error;
};

// The user asked for --help. Not a failure: the text is what to print.
class HelpRequested : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Exit statuses of programs that end through launch() or run_main(), and of
// `lockstep run`. Whoever starts workers passes on the status of the one that failed
// first, or 128 + its signal. Numbers above 64 are those of sysexits.h whose meaning
// comes closest.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;         // an exception of the program's own
inline constexpr int kExitUsage = 2;           // ConfigError: flags, variables, files
inline constexpr int kExitNodeLost = 69;       // a node was lost and too few are left
inline constexpr int kExitInternal = 70;       // InternalError
inline constexpr int kExitCommunication = 74;  // CommError: a peer or the network failed
inline constexpr int kExitPreempted = 75;      // asked to stop and saved: start it again
inline constexpr int kExitRendezvous = 76;     // the launchers of a job did not come together

}  // namespace lockstep
