#pragma once

#include <lockstep/model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::recipes {

struct GenerateOptions {
  double temperature = 1;  // divides the scores; 0: always the token with the highest score
  int64_t top_k = 0;       // draws from the tokens with the highest scores; 0: from all
  uint64_t seed = 0;
  int64_t max_tokens = 100;
  int64_t vocabulary = 0;            // draws tokens below this number; 0: all of the model
  std::optional<int64_t> stop = {};  // ends after this token, which is not passed on
};

// Continues `prompt` token by token and calls `take` with each. The model is a gpt(), in evaluation mode, on
// any device. Each token costs one place of the model, until the context is full: then its newer half is
// computed again, and the older half is forgotten. Of a prompt that is longer than the context only as many
// tokens as half of the context count. The same seed gives the same tokens on one device.
//
// ConfigError: an empty prompt, or a token that the model does not have.
void generate_tokens(const Model& model, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                     const std::function<void(int64_t token)>& take);

}  // namespace lockstep::recipes
