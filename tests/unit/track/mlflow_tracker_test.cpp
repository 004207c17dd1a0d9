#include "track/mlflow_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/listen_socket.h"
#include "support/fuzz/answer_server.h"
#include "track/mlflow_api.h"
#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using std::chrono::milliseconds;

// Answers as MLflow's server does, one connection after the other. `take` is called before each
// part of a file that it reads; false: it reads no more of it, and says nothing.
class FakeMlflow {
 public:
  explicit FakeMlflow(std::function<bool()> take) : take_(std::move(take)), thread_([this] { serve(); }) {}
  ~FakeMlflow() {
    {
      const std::lock_guard lock(mutex_);
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
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopped_.load(); });
  }

  static void answer(int fd, const std::string& head) {
    std::string body = "{}";
    if (head.find("experiments/get-by-name") != std::string::npos) {
      body = R"({"experiment": {"experiment_id": "0", "lifecycle_stage": "active"}})";
    } else if (head.find("runs/create") != std::string::npos) {
      body = R"({"run": {"info": {"run_id": "r", "artifact_uri": "mlflow-artifacts:/0/r/artifacts"}}})";
    }
    const std::string text =
        "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    ASSERT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  const std::function<bool()> take_;
  const base::ListenSocket socket_ = base::listen_on_free_port("127.0.0.1");
  std::mutex mutex_;
  std::condition_variable changed_;
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
