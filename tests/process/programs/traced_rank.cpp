// A rank that cannot be killed while somebody traces its second thread: a traced thread that has
// ended stays until its tracer has noticed, and the process with it.
//
//   traced_rank FOLDER       rank 1 writes FOLDER/thread, the number of its second thread, and
//                            waits; the others end with status 3 when FOLDER/fail exists, and with
//                            0 at once after a restart

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace {

int variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

[[noreturn]] void wait_for_ever() {
  while (true) ::pause();
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path folder = argv[1];
  if (variable("TORCHELASTIC_RESTART_COUNT") > 0) return 0;
  if (variable("RANK") == 1) {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    std::thread([&] {
      std::ofstream(folder / "new") << ::syscall(SYS_gettid) << '\n';
      std::filesystem::rename(folder / "new", folder / "thread");
      wait_for_ever();
    }).detach();
    wait_for_ever();
  }
  while (!std::filesystem::exists(folder / "fail")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 3;
}
