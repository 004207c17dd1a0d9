#pragma once

#include <nlohmann/json.hpp>

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

nlohmann::json to_json(const NodeInfo& node);
NodeInfo node_from(const nlohmann::json& json);

// The nodes as columns, each one string: thousands of them are read a thousand times.
nlohmann::json to_json(const Generation& generation);
Generation generation_from(const nlohmann::json& json);

nlohmann::json to_json(const JobFailure& failure);
JobFailure failure_from(const nlohmann::json& json);

nlohmann::json to_json(const JobOutcome& outcome);
JobOutcome outcome_from(const nlohmann::json& json);

}  // namespace lockstep::launcher::wire
