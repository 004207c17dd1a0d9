// The page that is served while runs go on, asked over real connections.

#include "report/follow.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "unit/report/run_files.h"

namespace lockstep::report {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A server in a thread of its own, until the test ends.
class FollowTest : public testing::Test {
 protected:
  explicit FollowTest(std::chrono::milliseconds patience = std::chrono::seconds(20))
      : stop_(::eventfd(0, EFD_CLOEXEC)) {
    files_.write("metrics.csv", "step,epoch,train_loss\n1,1,0.5\n");
    server_.emplace(std::vector{files_.path()}, 0, patience);
    const std::string address = server_->address();
    const size_t slash = address.find('/', std::string("http://127.0.0.1:").size());
    host_ = address.substr(7, slash - 7);
    path_ = address.substr(slash);
    thread_ = std::thread([this] { server_->run(stop_.get()); });
  }
  ~FollowTest() override {
    const uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }

  // receive_bytes: what the kernel keeps for this client; 0: as much as it likes.
  base::UniqueFd connect(int receive_bytes = 0) const {
    base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(host_.substr(host_.find(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};  // a server that hangs fails the test
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_bytes > 0) {
      ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  // All bytes of the answer.
  std::string send(const std::string& request) const {
    const base::UniqueFd fd = connect();
    EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    char part[4096];
    for (ssize_t size = 0; (size = ::recv(fd.get(), part, sizeof part, 0)) > 0;)
      answer.append(part, static_cast<size_t>(size));
    return answer;
  }
  std::string get(const std::string& path, const std::string& host) const {
    return send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nAccept: */*\r\n\r\n");
  }

  test::RunFiles files_;
  base::UniqueFd stop_;
  std::optional<RunServer> server_;
  std::thread thread_;
  std::string host_;  // "127.0.0.1:45123"
  std::string path_;  // "/TOKEN/"
};

TEST_F(FollowTest, ServesThePageAndANewOneWhenTheRunHasNewRows) {
  const base::UniqueFd idle = connect();  // a browser opens connections before it needs them
  const std::string page = get(path_, host_);
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(page, HasSubstr("Referrer-Policy: no-referrer\r\n"));
  EXPECT_THAT(page, HasSubstr("connect-src 'self'"));
  EXPECT_THAT(page, HasSubstr("[0.5]"));
  const std::string version = get(path_ + "version", host_);
  EXPECT_EQ(get(path_ + "version", host_), version);
  files_.write("metrics.csv", "step,epoch,train_loss\n1,1,0.5\n2,2,0.125\n");
  EXPECT_NE(get(path_ + "version", host_), version);
  EXPECT_THAT(get(path_ + "?theme=dark", host_), HasSubstr("[0.5,0.125]"));
}

TEST_F(FollowTest, TheLogsOfAllNodesGpusBelongToThePage) {
  std::string version = get(path_ + "version", host_);
  for (const char* file : {"gpu.csv", "gpu_node1.csv", "gpu_node12.csv"}) {
    files_.write(file, "timestamp, index, utilization.gpu [%], memory.used [MiB]\n");
    const std::string next = get(path_ + "version", host_);
    EXPECT_NE(next, version) << file;
    version = next;
  }
}

TEST_F(FollowTest, WithoutTheTokenThereIsNothing) {
  std::string wrong = path_;
  wrong[5] = wrong[5] == '0' ? '1' : '0';
  const std::string token = path_.substr(1, path_.size() - 2);
  EXPECT_GE(token.size(), 32u);
  for (const std::string& path : {std::string("/"), wrong, std::string("/version"), path_ + "../etc/passwd",
                                  path_ + "metrics.csv", "/" + token}) {
    const std::string answer = get(path, host_);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 ")) << path;
    EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n")) << "no content";
    EXPECT_THAT(answer, Not(HasSubstr(token)));
  }
}

// A name of a web site may resolve to 127.0.0.1.
TEST_F(FollowTest, AnswersToItsOwnNamesOnly) {
  const std::string port = host_.substr(host_.find(':'));
  EXPECT_THAT(get(path_, "localhost" + port), StartsWith("HTTP/1.1 200 "));
  for (const std::string& host :
       {std::string("example.org"), "example.org" + port, std::string("127.0.0.1"), std::string()}) {
    EXPECT_THAT(get(path_, host), StartsWith("HTTP/1.1 404 ")) << host;
  }
}

TEST_F(FollowTest, RefusesWhatIsNoRequestForThePage) {
  EXPECT_THAT(send("POST " + path_ + " HTTP/1.1\r\nHost: " + host_ + "\r\n\r\n"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(send("hello\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(send(std::string(16 << 10, 'x')), StartsWith("HTTP/1.1 400 "));
  std::filesystem::remove(files_.path() / "metrics.csv");
  EXPECT_THAT(get(path_, host_), StartsWith("HTTP/1.1 503 ")) << "the run is gone";
}

class ImpatientFollowTest : public FollowTest {
 protected:
  ImpatientFollowTest() : FollowTest(std::chrono::milliseconds(500)) {}

  // Larger than the buffers of the kernel: the name of a host is shown as it is.
  void make_page_large() {
    files_.write("ranks.json", "{\"ranks\": [{\"host\": \"" + std::string(8 << 20, 'x') + "\"}]}");
  }

  // Returns when the server has closed a connection that asked for nothing: after its patience.
  void wait_for_patience() const {
    const base::UniqueFd idle = connect();
    char byte = 0;
    EXPECT_EQ(::recv(idle.get(), &byte, 1, 0), 0);
  }
};

bool is_complete(const std::string& answer) {
  const std::string length = "Content-Length: ";
  const size_t end = answer.find("\r\n\r\n");
  const size_t field = answer.find(length);
  return end != std::string::npos && field < end &&
         answer.size() - end - 4 == std::stoull(answer.substr(field + length.size()));
}

// The client takes a part of the page now and then.
TEST_F(ImpatientFollowTest, AClientOfASlowLinkGetsAllOfALargePage) {
  constexpr size_t kPart = 1 << 20;
  make_page_large();
  const base::UniqueFd slow = connect(1 << 16);
  const std::string request = "GET " + path_ + " HTTP/1.1\r\nHost: " + host_ + "\r\n\r\n";
  ASSERT_EQ(::send(slow.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::vector<char> part(kPart);
  const auto receive = [&] {
    const ssize_t size = ::recv(slow.get(), part.data(), part.size(), MSG_WAITALL);
    if (size > 0) answer.append(part.data(), static_cast<size_t>(size));
    return size > 0;
  };
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(receive());
    wait_for_patience();
  }
  while (receive()) continue;
  EXPECT_TRUE(is_complete(answer)) << answer.size();
}

TEST_F(ImpatientFollowTest, AClientThatTakesNothingIsClosed) {
  make_page_large();
  const base::UniqueFd stuck = connect(1 << 16);
  const std::string request = "GET " + path_ + " HTTP/1.1\r\nHost: " + host_ + "\r\n\r\n";
  ASSERT_EQ(::send(stuck.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  // Once its time is looked at what the kernel took counts, the second time nothing has changed.
  for (int i = 0; i < 3; ++i) wait_for_patience();
  std::string answer;
  std::vector<char> part(1 << 20);
  for (ssize_t size = 0; (size = ::recv(stuck.get(), part.data(), part.size(), 0)) > 0;)
    answer.append(part.data(), static_cast<size_t>(size));
  EXPECT_FALSE(is_complete(answer)) << answer.size();
}

TEST(RunServerTest, AFolderThatIsNoRunIsAnErrorAtOnce) {
  test::RunFiles files;
  EXPECT_THROW(RunServer({files.path()}, 0), ConfigError);
}

}  // namespace
}  // namespace lockstep::report
