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
  FollowTest() : stop_(::eventfd(0, EFD_CLOEXEC)) {
    files_.write("metrics.csv", "step,epoch,train_loss\n1,1,0.5\n");
    server_.emplace(std::vector{files_.path()}, 0);
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

  base::UniqueFd connect() const {
    base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(host_.substr(host_.find(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};  // a server that hangs fails the test
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
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

TEST(RunServerTest, AFolderThatIsNoRunIsAnErrorAtOnce) {
  test::RunFiles files;
  EXPECT_THROW(RunServer({files.path()}, 0), ConfigError);
}

}  // namespace
}  // namespace lockstep::report
