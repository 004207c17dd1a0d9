#include "track/mlflow_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "base/listen_socket.h"
#include "support/fuzz/answer_server.h"
#include "track/mlflow_api.h"
#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

MlflowSettings server_at(uint16_t port, std::chrono::milliseconds close_timeout) {
  MlflowSettings settings;
  settings.tracking_uri = "http://127.0.0.1:" + std::to_string(port);
  settings.experiment_name = "Default";
  settings.close_timeout = close_timeout;
  return settings;
}

TEST(MlflowTrackerTest, WritesReturnThoughTheServerNeverAnswers) {
  const base::ListenSocket silent = base::listen_on_free_port("127.0.0.1");
  testing::internal::CaptureStderr();
  const auto tracker = make_mlflow_tracker(server_at(silent.port, std::chrono::milliseconds(50)));
  for (int step = 0; step < 1000; ++step) tracker->write_scalars(std::vector<Scalar>{{"loss", 1}}, step);
  tracker->write_hyperparameters({{"lr", 0.1}}, {{"loss", 1}});
  tracker->write_text("model", "Linear", 1);
  tracker->close(RunStatus::kFinished);
  tracker->close(RunStatus::kFinished);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: the tracker 'mlflow' cannot reach its server"),
                    HasSubstr("has lost 1003 values and files")));
}

TEST(MlflowTrackerTest, WhatDoesNotFitIntoTheQueueIsLost) {
  const base::ListenSocket silent = base::listen_on_free_port("127.0.0.1");
  testing::internal::CaptureStderr();
  const auto tracker = make_mlflow_tracker(server_at(silent.port, std::chrono::milliseconds(1)));
  const std::vector<Scalar> many(30'000, Scalar{"loss", 1});
  for (int step = 0; step < 5; ++step) tracker->write_scalars(many, step);  // three times fit
  tracker->close(RunStatus::kFinished);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("has lost 150000 values"));
}

TEST(MlflowTrackerTest, NamesAFileThatIsNotThere) {
  const base::ListenSocket silent = base::listen_on_free_port("127.0.0.1");
  testing::internal::CaptureStderr();
  {
    const auto tracker = make_mlflow_tracker(server_at(silent.port, std::chrono::milliseconds(1)));
    EXPECT_THAT([&] { tracker->log_artifact("/no/such/file"); },
                ThrowsMessage<ConfigError>(HasSubstr("/no/such/file")));
  }
  testing::internal::GetCapturedStderr();
}

// Answers of foreign servers in general: tests/unit/fuzz/core.
TEST(HttpClientTest, AnAnswerWithoutAnEndIsRefused) {
  fuzz::AnswerServer& server = fuzz::AnswerServer::of_process();
  server.set_answers({"HTTP/1.1 200 OK\r\n\r\n" + std::string(20 << 20, 'x')});
  HttpClient client({});
  EXPECT_THAT([&] { client.send({.method = "GET", .url = server.url()}); },
              ThrowsMessage<ConfigError>(HasSubstr("larger than 8 MiB")));
}

TEST(MlflowKeyTest, KeepsWhatMlflowAllows) {
  EXPECT_EQ(mlflow_key("grad/fc-1.weight: mean_x"), "grad/fc-1.weight: mean_x");
  EXPECT_EQ(mlflow_key("top@5 (%)"), "top_5 ___");
  EXPECT_EQ(mlflow_key("größe"), "größe");
  EXPECT_EQ(mlflow_key(std::string(249, 'a') + "ö"), std::string(249, 'a'));  // no half character
}

TEST(UrlTest, EncodesAllButTheUnreserved) { EXPECT_EQ(url_encoded("a-Z_0.~ /ä%"), "a-Z_0.~%20%2F%C3%A4%25"); }

}  // namespace
}  // namespace lockstep::track
