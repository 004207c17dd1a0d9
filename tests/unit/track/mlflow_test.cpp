#include "track/mlflow.h"

#include <sys/socket.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "base/network.h"
#include "support/fuzz/answer_server.h"
#include "track/trackers.h"
#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using std::chrono::milliseconds;

class MlflowSettingsTest : public testing::Test {
 protected:
  RunFolder folder_;
  base::Environment environment_ = {{"MLFLOW_TRACKING_URI", "http://host:5000/"}};
};

TEST_F(MlflowSettingsTest, HasDefaults) {
  TrackerOptions options = folder_.new_run();
  options.run_name = "mine";
  const MlflowSettings settings = mlflow_settings(options, environment_);
  EXPECT_EQ(settings.tracking_uri, "http://host:5000");
  EXPECT_EQ(settings.experiment_name, "Default");
  EXPECT_EQ(settings.run_name, "mine");
  EXPECT_EQ(settings.run_id, "");
}

TEST_F(MlflowSettingsTest, ReadsTheVariables) {
  environment_.set("MLFLOW_EXPERIMENT_NAME", "e");
  environment_.set("MLFLOW_RUN_NAME", "r");
  environment_.set("MLFLOW_RUN_ID", "id");
  environment_.set("MLFLOW_TRACKING_USERNAME", "u");
  environment_.set("MLFLOW_TRACKING_PASSWORD", "p");
  environment_.set("MLFLOW_TRACKING_TOKEN", "t");
  const MlflowSettings settings = mlflow_settings(folder_.new_run(), environment_);
  EXPECT_EQ(settings.experiment_name, "e");
  EXPECT_EQ(settings.run_name, "r");
  EXPECT_EQ(settings.run_id, "id");
  EXPECT_TRUE(settings.run_id_is_required);
  EXPECT_EQ(settings.credentials.username, "u");
  EXPECT_EQ(settings.credentials.password, "p");
  EXPECT_EQ(settings.credentials.token, "t");
}

TEST_F(MlflowSettingsTest, SaysWhichAddressItNeeds) {
  for (const char* uri : {"", "./mlruns", "sqlite:///mlflow.db", "databricks", "localhost:5000"}) {
    environment_.set("MLFLOW_TRACKING_URI", uri);
    EXPECT_THAT([&] { mlflow_settings(folder_.new_run(), environment_); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("MLFLOW_TRACKING_URI"), HasSubstr(uri))));
  }
}

TEST_F(MlflowSettingsTest, AResumedRunFindsItsId) {
  save_run_id(mlflow_settings(folder_.new_run(), environment_), "before");
  const MlflowSettings resumed = mlflow_settings(folder_.resumed_at(3), environment_);
  EXPECT_EQ(resumed.run_id, "before");
  EXPECT_FALSE(resumed.run_id_is_required);
  EXPECT_EQ(mlflow_settings(folder_.new_run(), environment_).run_id, "");
  environment_.set("MLFLOW_TRACKING_URI", "http://another:5000");
  EXPECT_EQ(mlflow_settings(folder_.resumed_at(3), environment_).run_id, "");
}

TEST_F(MlflowSettingsTest, ABrokenIdFileIsNone) {
  for (const char* content :
       {"", "{", "[]", R"({"tracking_uri": "http://host:5000", "run_id": 3})", R"({"tracking_uri": 1})"}) {
    folder_.put("mlflow_run.json", content);
    EXPECT_EQ(mlflow_settings(folder_.resumed_at(3), environment_).run_id, "");
  }
}

TEST_F(MlflowSettingsTest, APasswordIsNeitherShownNorKept) {
  environment_.set("MLFLOW_TRACKING_URI", "https://me:secret@host/path@x");
  const MlflowSettings settings = mlflow_settings(folder_.new_run(), environment_);
  EXPECT_EQ(settings.tracking_uri, "https://me:secret@host/path@x");
  EXPECT_EQ(without_credentials(settings.tracking_uri), "https://host/path@x");
  EXPECT_EQ(without_credentials("http://host/a@b"), "http://host/a@b");
  save_run_id(settings, "id");
  EXPECT_EQ(folder_.content_of("mlflow_run.json").find("secret"), std::string::npos);
  EXPECT_EQ(mlflow_settings(folder_.resumed_at(1), environment_).run_id, "id");
}

// Answers like MLflow's server, one connection at a time. `take` is called before each part of a
// file is read; false: the server stops reading the file and does not answer.
class FakeMlflow {
 public:
  explicit FakeMlflow(std::function<bool()> take,
                      std::string artifact_uri = "mlflow-artifacts:/0/r/artifacts")
      : take_(std::move(take)), artifact_uri_(std::move(artifact_uri)), thread_([this] { serve(); }) {}
  ~FakeMlflow() {
    {
      const base::MutexLock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    ::shutdown(socket_.fd.get(), SHUT_RDWR);  // ends accept()
    thread_.join();
  }

  uint16_t port() const { return socket_.port; }
  int64_t file_bytes() const { return file_bytes_; }
  bool has_finished_run() const { return finished_; }

 private:
  static constexpr size_t kPart = 256 << 10;

  void serve() {
    // Else the kernel would take most of a file by itself.
    const int room = 64 << 10;
    ::setsockopt(socket_.fd.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
    while (!stopped_) {
      const base::UniqueFd connection(::accept(socket_.fd.get(), nullptr, nullptr));
      if (connection) talk(connection.get());
    }
  }

  void talk(int fd) {
    std::string received;
    while (true) {
      size_t end = 0;
      while ((end = received.find("\r\n\r\n")) == std::string::npos) {
        if (!read_some(fd, received, 4096)) return;
      }
      const std::string head = received.substr(0, end);
      received.erase(0, end + 4);
      const size_t length = length_of(head);
      const bool is_file = head.starts_with("PUT");
      std::string body;
      while (received.size() < length) {
        if (is_file && !take_()) return wait_for_end();
        if (!read_some(fd, received, kPart)) return;
        if (!is_file) continue;
        file_bytes_ += static_cast<int64_t>(received.size());
        body += received;
        received.clear();
        if (body.size() >= length) break;
      }
      if (!is_file) body = std::exchange(received, {});
      if (head.starts_with("POST") && head.find("runs/update") != std::string::npos) {
        finished_ = body.find("FINISHED") != std::string::npos;
      }
      answer(fd, head);
    }
  }

  static size_t length_of(const std::string& head) {
    const std::string name = "Content-Length: ";
    const size_t at = head.find(name);
    return at == std::string::npos ? 0 : std::stoull(head.substr(at + name.size()));
  }

  static bool read_some(int fd, std::string& received, size_t most) {
    std::string part(most, '\0');
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count <= 0) return false;
    received.append(part, 0, static_cast<size_t>(count));
    return true;
  }

  void wait_for_end() {
    base::MutexLock lock(mutex_);
    while (!stopped_) changed_.wait(lock);
  }

  void answer(int fd, const std::string& head) const {
    std::string body = "{}";
    if (head.find("experiments/get-by-name") != std::string::npos) {
      body = R"({"experiment": {"experiment_id": "0", "lifecycle_stage": "active"}})";
    } else if (head.find("runs/create") != std::string::npos) {
      body = R"({"run": {"info": {"run_id": "r", "artifact_uri": ")" + artifact_uri_ + R"("}}})";
    }
    const std::string text =
        "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    ASSERT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  const std::function<bool()> take_;
  const std::string artifact_uri_;
  const base::ListenSocket socket_ = base::listen_on_free_port("127.0.0.1");
  base::Mutex mutex_;
  base::Condition changed_;
  std::atomic<bool> stopped_ = false;  // set under mutex_
  std::atomic<int64_t> file_bytes_ = 0;
  std::atomic<bool> finished_ = false;
  std::thread thread_;
};

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

constexpr int64_t kModelBytes = 24 << 20;

// Lets a server read a file of kModelBytes in this time.
std::function<bool()> at_pace(milliseconds time) {
  return [start = std::chrono::steady_clock::now(), time, parts = int64_t{0}]() mutable {
    std::this_thread::sleep_until(start + time * ++parts / (kModelBytes >> 18));
    return true;
  };
}

// What close() says after a model was handed over.
std::string close_with_model(const FakeMlflow& server, milliseconds close_timeout, RunStatus status) {
  const RunFolder folder;
  folder.put("model.safetensors", std::string(kModelBytes, 'x'));
  const auto tracker = make_mlflow_tracker(server_at(server.port(), close_timeout));
  tracker->log_artifact(folder.path() / "model.safetensors");
  testing::internal::CaptureStderr();
  tracker->close(status);
  return testing::internal::GetCapturedStderr();
}

// A large model over a slow network: longer than close_timeout, but never without progress.
TEST(MlflowTrackerTest, AFileThatTheServerTakesSlowlyArrivesWhole) {
  const FakeMlflow server(at_pace(milliseconds(3000)));
  EXPECT_EQ(close_with_model(server, milliseconds(1500), RunStatus::kFinished), "");
  EXPECT_EQ(server.file_bytes(), kModelBytes);
  EXPECT_TRUE(server.has_finished_run());
}

TEST(MlflowTrackerTest, AFileThatTheServerTakesNoMoreOfEndsTheWait) {
  const FakeMlflow server([parts = 0]() mutable { return ++parts < 4; });
  EXPECT_THAT(close_with_model(server, milliseconds(50), RunStatus::kFinished),
              HasSubstr("has lost 1 values and files"));
  EXPECT_FALSE(server.has_finished_run());
}

// It is about to be killed.
TEST(MlflowTrackerTest, AnInterruptedRunDoesNotWaitForItsFiles) {
  const FakeMlflow server(at_pace(milliseconds(3000)));
  EXPECT_THAT(close_with_model(server, milliseconds(50), RunStatus::kInterrupted),
              HasSubstr("has lost 1 values and files"));
}

// A server that keeps files in a folder, and what the client says after it was told of it.
class MlflowFolderServerTest : public testing::Test {
 protected:
  std::string write_text(const std::string& artifact_uri, const char* host, const std::string& name) const {
    const FakeMlflow server([] { return true; }, artifact_uri);
    MlflowSettings settings = server_at(server.port(), milliseconds(5000));
    settings.tracking_uri = fmt::format("http://{}:{}", host, server.port());
    const auto tracker = make_mlflow_tracker(settings);
    testing::internal::CaptureStderr();
    tracker->write_text(name, "Linear", 1);
    tracker->close(RunStatus::kFinished);
    EXPECT_TRUE(server.has_finished_run());
    return testing::internal::GetCapturedStderr();
  }

  RunFolder folder_;
};

TEST_F(MlflowFolderServerTest, OfThisMachineGetsACopy) {
  const std::filesystem::path artifacts = folder_.path() / "0/r/artifacts";
  EXPECT_EQ(write_text(artifacts, "127.0.0.1", "plain"), "");
  EXPECT_EQ(write_text("file://" + artifacts.string(), "localhost", "uri"), "");
  EXPECT_EQ(folder_.content_of("0/r/artifacts/text/plain/step_1.txt"), "Linear");
  EXPECT_EQ(folder_.content_of("0/r/artifacts/text/uri/step_1.txt"), "Linear");
}

// Linux takes 0.0.0.0 for this machine; no server has it as its address.
TEST_F(MlflowFolderServerTest, OfAnotherMachineDoesNotChooseAFolderOfThisOne) {
  const std::filesystem::path artifacts = folder_.path() / "0/r/artifacts";
  for (const std::string& uri : {artifacts.string(), "file://" + artifacts.string()}) {
    EXPECT_THAT(write_text(uri, "0.0.0.0", "model"), AllOf(HasSubstr("--serve-artifacts"), HasSubstr(uri)));
  }
  EXPECT_THAT(folder_.names(), testing::IsEmpty());
}

TEST_F(MlflowFolderServerTest, ChoosesNoOtherFolderThanARuns) {
  for (const char* below : {"", "/r", "/0/x/artifacts", "/0/../r/artifacts"}) {
    EXPECT_THAT(write_text(folder_.path().string() + below, "127.0.0.1", "model"),
                AllOf(HasSubstr("nothing is written there"), HasSubstr("has lost 1 values and files")));
  }
  EXPECT_THAT(folder_.names(), testing::IsEmpty());
}

TEST_F(MlflowFolderServerTest, GetsNoNameThatLeadsOut) {
  const std::string out = "../../../../out";
  EXPECT_THAT(write_text(folder_.path() / "0/r/artifacts", "127.0.0.1", out), HasSubstr(out));
  EXPECT_THAT(write_text("mlflow-artifacts:/0/r/artifacts", "127.0.0.1", out), HasSubstr(out));
  EXPECT_THAT(folder_.names(), testing::IsEmpty());
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
