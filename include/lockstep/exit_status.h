#pragma once

namespace lockstep {

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
