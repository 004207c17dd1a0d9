#pragma once

#include <lockstep/json.h>
#include <string>
#include <string_view>
#include <vector>

#include "launch/job.h"

namespace lockstep::launcher::wire {

// The words of job.h as JSON. from_* throw ProtocolError, to_* cut texts to what
// from_* takes.

inline constexpr int kMaxNodes = 1 << 16;
inline constexpr int kMaxGenerations = 1 << 30;
inline constexpr size_t kMaxName = 255;      // host, address
inline constexpr size_t kMaxReason = 4096;   // one sentence
inline constexpr size_t kMaxMessage = 8192;  // of an error file
inline constexpr size_t kMaxLine = 1000;
inline constexpr size_t kMaxLines = 30;

std::string cut(const std::string& text, size_t max_bytes);

Json to_json(const NodeInfo& node);
NodeInfo node_from(const Json& object);

// Without its nodes, but with their number.
Json to_json(const Generation& generation);
Generation generation_from(const Json& object, std::string_view table);
// The nodes, one a line: host, address, local world size and pid between tabs. Not in
// the JSON: that takes five times as long to read, and thousands of launchers read
// thousands of nodes at the same moment.
std::string node_table(const std::vector<NodeInfo>& nodes);

Json to_json(const JobFailure& failure);
JobFailure failure_from(const Json& object);

Json to_json(const JobOutcome& outcome);
JobOutcome outcome_from(const Json& object);

}  // namespace lockstep::launcher::wire
