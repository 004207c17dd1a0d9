#pragma once

#include <lockstep/sharded.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli::plan {

// All that is told of a model.
struct Answer {
  std::string model;
  std::string optimizer;
  std::string precision;
  std::string autocast;  // empty: none
  int world = 1;
  int64_t batch_size = 1;
  // Of a rank; nullopt: the model cannot be run, or nobody asked.
  std::optional<int64_t> activation_bytes = {};
  bool activations_asked = true;
  bool activation_checkpointing = false;
  std::optional<int64_t> memory_bytes = {};  // that a rank has

  struct Stage {
    int stage = 0;
    ZeroPlan plan;
  };
  std::vector<Stage> stages;

  int64_t total(const Stage& stage) const;
  bool fits(const Stage& stage) const { return !memory_bytes || total(stage) <= *memory_bytes; }
};

std::string text_of(const Answer& answer);
std::string json_of(const Answer& answer);

// "80GB" is 80 * 10^9, "80GiB" 80 * 2^30; B, kB, MB, TB likewise. ConfigError.
int64_t parse_bytes(const std::string& text);

}  // namespace lockstep::cli::plan
