#pragma once

#include <lockstep/error.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "support/fuzz/answer_server.h"
#include "support/fuzz/finding.h"
#include "track/mlflow.h"

namespace lockstep::fuzz {

// Answers of a server to the requests of a run, one after the other: a line "== " ends one.
// A body alone gets the head of an answer, so that changes of the body leave a valid one.
inline bool takes_http_answer(std::string_view bytes) {
  AnswerServer& server = AnswerServer::of_process();
  constexpr std::string_view kNext = "\n== \n";
  std::vector<std::string> answers;
  for (size_t begin = 0; begin <= bytes.size();) {
    const size_t end = std::min(bytes.find(kNext, begin), bytes.size());
    std::string answer(bytes.substr(begin, end - begin));
    if (!answer.starts_with("HTTP/")) {
      answer = "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(answer.size()) + "\r\n\r\n" + answer;
    }
    answers.push_back(std::move(answer));
    begin = end + kNext.size();
  }
  server.set_answers(std::move(answers));
  track::MlflowSettings settings;
  settings.tracking_uri = server.url();
  settings.experiment_name = "fuzz";
  try {
    track::MlflowApi api(settings);
    api.open_run();
    require(api.is_open(), "a run that was opened has an id");
    const std::array<track::MlflowMetric, 1> metrics = {{{.key = "loss", .value = 1, .step = 1}}};
    api.log_metrics(metrics);
    api.close_run(RunStatus::kFinished);
    return true;
  } catch (const CommError&) {
    return false;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
