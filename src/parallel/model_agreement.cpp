#include "parallel/model_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <algorithm>
#include <cstdint>
#include <map>

namespace lockstep::parallel {

namespace {

constexpr size_t kMaxDifferencesShown = 5;

std::string encode(const std::vector<ModelFact>& facts) {
  Json list = Json::array();
  for (const ModelFact& fact : facts) list.push_back({fact.subject, fact.value});
  return list.dump();
}

std::vector<ModelFact> decode(const std::string& text) {
  std::vector<ModelFact> facts;
  for (const auto& pair : Json::parse(text)) facts.push_back({pair.at(0).text(), pair.at(1).text()});
  return facts;
}

// FNV-1a: std::hash may differ between two builds of one program.
std::string fingerprint(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

std::map<std::string, std::string> by_subject(const std::vector<ModelFact>& facts) {
  std::map<std::string, std::string> map;
  for (const ModelFact& fact : facts) map.emplace(fact.subject, fact.value);
  return map;
}

}  // namespace

std::string describe_difference(const std::vector<ModelFact>& rank0, const std::vector<ModelFact>& other,
                                int other_rank) {
  if (rank0 == other) return "";
  const auto here = by_subject(rank0);
  const auto there = by_subject(other);
  std::vector<std::string> differences;
  for (const ModelFact& fact : rank0) {
    const auto found = there.find(fact.subject);
    if (found == there.end()) {
      differences.push_back(
          fmt::format("{} ({}) is on rank 0 but not on rank {}", fact.subject, fact.value, other_rank));
    } else if (found->second != fact.value) {
      differences.push_back(fmt::format("{} is {} on rank 0 and {} on rank {}", fact.subject, fact.value,
                                        found->second, other_rank));
    }
  }
  for (const ModelFact& fact : other) {
    if (here.find(fact.subject) == here.end()) {
      differences.push_back(
          fmt::format("{} ({}) is on rank {} but not on rank 0", fact.subject, fact.value, other_rank));
    }
  }
  if (differences.empty()) {
    const auto [a, b] = std::mismatch(rank0.begin(), rank0.end(), other.begin(), other.end());
    if (a == rank0.end() || b == other.end()) return fmt::format("rank {} lists a subject twice", other_rank);
    return fmt::format("{} on rank 0 comes where {} is on rank {}", a->subject, b->subject, other_rank);
  }
  const size_t more = differences.size() - std::min(differences.size(), kMaxDifferencesShown);
  if (more > 0) {
    differences.resize(kMaxDifferencesShown);
    differences.push_back(fmt::format("and {} more on rank {}", more, other_rank));
  }
  return fmt::format("{}", fmt::join(differences, "; "));
}

void require_agreement(const std::vector<ModelFact>& facts, const Communicator& communicator) {
  const std::string text = encode(facts);
  const auto prints = communicator.all_gather_bytes(fingerprint(text));
  if (std::all_of(prints.begin(), prints.end(), [&](const auto& print) { return print == prints.front(); })) {
    return;
  }
  const auto texts = communicator.all_gather_bytes(text);
  const auto rank0 = decode(texts.front());
  std::vector<std::string> sentences;
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    std::string sentence = describe_difference(rank0, decode(texts[rank]), static_cast<int>(rank));
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  }
  throw ConfigError("grad", fmt::format("the ranks have different models: {}", fmt::join(sentences, "; ")));
}

}  // namespace lockstep::parallel
