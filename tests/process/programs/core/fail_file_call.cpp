// Runs a program of which one file operation fails, as a disk that is full, broken or slow has it:
//
//   fail_file_call FOLDER FAULT NUMBER RESULT COMMAND...
//
// Operations count that are on files below FOLDER and can fail in the way of FAULT, of the program
// and all that it starts, in the order in which the kernel sees them. NUMBER is the first that
// fails, from 0; -1: none.
//
//   FAULT      what happens                                          how often
//   enospc     no space left on device                               from then on
//   erofs      read-only file system                                 from then on
//   eio        input/output error                                    once
//   eintr      a signal interrupts the call                          once
//   stuck      a write or a sync takes half a second                 once
//
// Ends with the program's status. RESULT gets a line for each operation that counted: its name and
// the file's path in FOLDER; those that failed begin with "! ".
//
// The kernel asks this process about each call (seccomp's user notification), so the program needs
// no hook, and calls of any library are seen.

#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "support/supervised_calls.h"

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kStuck{500};

// Where a call names its file.
enum class Names { kPath, kPathAt, kDescriptor };
// What a call does, which decides how it can fail.
enum class Kind { kOpen, kRead, kWrite, kSync, kRename, kRemove, kMakeFolder };

struct FileCall {
  int number;
  std::string_view name;
  Names names;
  Kind kind;
  int flags_argument = -1;  // of kOpen; -1: the call makes a file
};

constexpr std::array kCalls = {
    FileCall{SYS_openat, "open", Names::kPathAt, Kind::kOpen, 2},
    FileCall{SYS_read, "read", Names::kDescriptor, Kind::kRead},
    FileCall{SYS_pread64, "pread", Names::kDescriptor, Kind::kRead},
    FileCall{SYS_readv, "readv", Names::kDescriptor, Kind::kRead},
    FileCall{SYS_getdents64, "getdents", Names::kDescriptor, Kind::kRead},
    FileCall{SYS_write, "write", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_pwrite64, "pwrite", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_writev, "writev", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_pwritev, "pwritev", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_ftruncate, "ftruncate", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_fallocate, "fallocate", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_sendfile, "sendfile", Names::kDescriptor, Kind::kWrite},
    FileCall{SYS_fsync, "fsync", Names::kDescriptor, Kind::kSync},
    FileCall{SYS_fdatasync, "fdatasync", Names::kDescriptor, Kind::kSync},
    FileCall{SYS_renameat, "rename", Names::kPathAt, Kind::kRename},
    FileCall{SYS_renameat2, "rename", Names::kPathAt, Kind::kRename},
    FileCall{SYS_unlinkat, "unlink", Names::kPathAt, Kind::kRemove},
    FileCall{SYS_mkdirat, "mkdir", Names::kPathAt, Kind::kMakeFolder},
#ifdef SYS_open  // later architectures, such as aarch64, have only the calls that end with "at"
    FileCall{SYS_open, "open", Names::kPath, Kind::kOpen, 1},
    FileCall{SYS_creat, "open", Names::kPath, Kind::kOpen},
    FileCall{SYS_rename, "rename", Names::kPath, Kind::kRename},
    FileCall{SYS_unlink, "unlink", Names::kPath, Kind::kRemove},
    FileCall{SYS_rmdir, "rmdir", Names::kPath, Kind::kRemove},
    FileCall{SYS_mkdir, "mkdir", Names::kPath, Kind::kMakeFolder},
#endif
};

struct Fault {
  std::string_view name;
  int error;  // 0: the call is late
  bool lasts;
};

constexpr std::array kFaults = {Fault{"enospc", ENOSPC, true}, Fault{"erofs", EROFS, true},
                                Fault{"eio", EIO, false}, Fault{"eintr", EINTR, false},
                                Fault{"stuck", 0, false}};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::_Exit(EXIT_FAILURE);
}

bool can_fail(const FileCall& call, const seccomp_data& data, const Fault& fault) {
  constexpr uint64_t kWriting = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  const uint64_t flags = call.kind != Kind::kOpen  ? 0
                         : call.flags_argument < 0 ? kWriting
                                                   : data.args[call.flags_argument];
  switch (fault.error) {
    case ENOSPC:
      return call.kind == Kind::kOpen ? (flags & O_CREAT) != 0
                                      : call.kind != Kind::kRead && call.kind != Kind::kRemove;
    case EROFS:
      return call.kind == Kind::kOpen
                 ? (flags & kWriting) != 0
                 : call.kind == Kind::kRename || call.kind == Kind::kRemove || call.kind == Kind::kMakeFolder;
    case EIO: return true;
    case EINTR:
      return call.kind == Kind::kOpen || call.kind == Kind::kRead || call.kind == Kind::kWrite ||
             call.kind == Kind::kSync;
    default: return call.kind == Kind::kWrite || call.kind == Kind::kSync;
  }
}

// In the program, before it begins: its calls of kCalls ask whoever holds the returned descriptor.
int install_filter() {
  std::vector<int> numbers;
  for (const FileCall& call : kCalls) numbers.push_back(call.number);
  return lockstep::test::supervise_calls(numbers).release();
}

// A message of one byte with room for a descriptor.
struct DescriptorMessage {
  DescriptorMessage() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

void send_descriptor(int socket, int fd) {
  DescriptorMessage sent;
  cmsghdr* header = CMSG_FIRSTHDR(&sent.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  if (::sendmsg(socket, &sent.message, 0) < 0) fail("sendmsg");
}

int receive_descriptor(int socket) {
  DescriptorMessage received;
  if (::recvmsg(socket, &received.message, MSG_CMSG_CLOEXEC) <= 0) fail("recvmsg");
  const cmsghdr* header = CMSG_FIRSTHDR(&received.message);
  if (header == nullptr) fail("no descriptor");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return fd;
}

std::string link_of(pid_t thread, const std::string& what) {
  std::error_code error;
  return fs::read_symlink("/proc/" + std::to_string(thread) + "/" + what, error).string();
}

std::string path_of(const FileCall& call, const seccomp_notif& request) {
  const auto thread = static_cast<pid_t>(request.pid);
  const auto descriptor = [&] {
    return link_of(thread, "fd/" + std::to_string(static_cast<int>(request.data.args[0])));
  };
  if (call.names == Names::kDescriptor) return descriptor();
  const fs::path path =
      lockstep::test::text_in(thread, request.data.args[call.names == Names::kPathAt ? 1 : 0]);
  if (path.is_absolute()) return path.lexically_normal();
  const bool is_here = call.names == Names::kPath || static_cast<int>(request.data.args[0]) == AT_FDCWD;
  return (fs::path(is_here ? link_of(thread, "cwd") : descriptor()) / path).lexically_normal();
}

class Supervisor {
 public:
  Supervisor(int listener, std::string folder, const Fault& fault, int64_t first, const std::string& result)
      : listener_(listener), folder_(std::move(folder)), fault_(fault), first_(first), result_(result) {}

  // Milliseconds until late() has something to do; -1: nothing waits.
  int patience() const {
    if (late_ == 0) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now()).count();
    return static_cast<int>(std::max<int64_t>(left, 0));
  }

  // Lets the call go on that was stuck, when its time has come.
  void late() {
    if (late_ != 0 && Clock::now() >= until_) send(std::exchange(late_, 0), 0);
  }

  void answer() {
    seccomp_notif request{};
    // ENOENT: the thread was killed meanwhile.
    if (::ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) return;
    if (!fails(request)) {
      send(request.id, 0);
    } else if (fault_.error != 0) {
      send(request.id, fault_.error);
    } else {
      late_ = request.id;
      until_ = Clock::now() + kStuck;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Error 0: the kernel does what the call asks for.
  void send(uint64_t id, int error) const {
    seccomp_notif_resp response{};
    response.id = id;
    response.flags = error == 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
    response.error = -error;
    ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response);
  }

  bool fails(const seccomp_notif& request) {
    const auto call = std::find_if(kCalls.begin(), kCalls.end(),
                                   [&](const FileCall& known) { return known.number == request.data.nr; });
    if (call == kCalls.end() || !can_fail(*call, request.data, fault_)) return false;
    const std::string path = path_of(*call, request);
    if (!path.starts_with(folder_ + "/")) return false;
    const int64_t number = count_++;
    const bool fails = first_ >= 0 && (fault_.lasts ? number >= first_ : number == first_);
    result_ << (fails ? "! " : "") << call->name << " " << path.substr(folder_.size() + 1) << std::endl;
    return fails;
  }

  int listener_;
  std::string folder_;
  Fault fault_;
  int64_t first_;
  std::ofstream result_;
  int64_t count_ = 0;
  uint64_t late_ = 0;  // the call that is stuck; 0: none
  Clock::time_point until_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: fail_file_call FOLDER FAULT NUMBER RESULT COMMAND...\n");
    return EXIT_FAILURE;
  }
  const auto fault =
      std::find_if(kFaults.begin(), kFaults.end(), [&](const Fault& known) { return known.name == argv[2]; });
  if (fault == kFaults.end()) {
    std::fprintf(stderr, "no such fault: %s\n", argv[2]);
    return EXIT_FAILURE;
  }
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) fail("socketpair");
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // What the calls of this thread would wait for is sent by them: no call between of kCalls.
    send_descriptor(sockets[1], install_filter());
    ::execvp(argv[5], argv + 5);
    fail(argv[5]);
  }
  ::close(sockets[1]);
  const int listener = receive_descriptor(sockets[0]);
  const int ended = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  if (ended < 0) fail("pidfd_open");
  Supervisor supervisor(listener, fs::canonical(argv[1]), *fault, std::atoll(argv[3]), argv[4]);
  while (true) {
    std::array<pollfd, 2> events = {pollfd{listener, POLLIN, 0}, pollfd{ended, POLLIN, 0}};
    if (::poll(events.data(), events.size(), supervisor.patience()) < 0 && errno != EINTR) fail("poll");
    supervisor.late();
    if ((events[0].revents & POLLIN) != 0)
      supervisor.answer();
    else if (events[1].revents != 0)
      break;
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) fail("waitpid");
  if (WIFSIGNALED(status)) {
    std::signal(WTERMSIG(status), SIG_DFL);
    std::raise(WTERMSIG(status));
  }
  return WEXITSTATUS(status);
}
