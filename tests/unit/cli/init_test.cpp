#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <fstream>
#include <sstream>

#include "cli/commands.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class InitTest : public testing::Test {
 protected:
  // What the command prints.
  static std::string init(std::vector<std::string> words) {
    std::vector<const char*> argv = {"lockstep init"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    testing::internal::CaptureStdout();
    try {
      run_init(static_cast<int>(argv.size()), argv.data());
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    return testing::internal::GetCapturedStdout();
  }

  static std::string error(const std::vector<std::string>& words) {
    return test::error_of([&] { init(words); });
  }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  test::TemporaryFolder folder_;
};

TEST_F(InitTest, WritesAProjectUnderTheFoldersName) {
  EXPECT_THAT(init({path("spirals").string()}), HasSubstr("a program 'spirals'"));
  EXPECT_THAT(read_file(path("spirals/CMakeLists.txt")),
              AllOf(HasSubstr("project(spirals "), HasSubstr("add_executable(spirals main.cpp)"),
                    HasSubstr("find_package(Lockstep 0."), Not(HasSubstr("@"))));
  EXPECT_THAT(read_file(path("spirals/main.cpp")),
              AllOf(HasSubstr("#include <lockstep/lockstep.h>"), Not(HasSubstr("@"))));
  EXPECT_THAT(read_file(path("spirals/README.md")),
              AllOf(HasSubstr("build/spirals --nprocs 2"), Not(HasSubstr("@"))));
  EXPECT_THAT(read_file(path("spirals/job.sbatch")),
              AllOf(HasSubstr("#SBATCH --ntasks-per-node=2\n"), HasSubstr("build/spirals")));
  EXPECT_TRUE(std::filesystem::exists(path("spirals/.gitignore")));
}

TEST_F(InitTest, TakesANameAndAnEmptyFolder) {
  std::filesystem::create_directory(path("2026 run"));
  init({path("2026 run").string(), "--name", "my-net"});
  EXPECT_THAT(read_file(path("2026 run/CMakeLists.txt")), HasSubstr("project(my-net "));
  init({(path("with") / "slash").string() + "/"});
  EXPECT_THAT(read_file(path("with/slash/CMakeLists.txt")), HasSubstr("project(slash "));
}

TEST_F(InitTest, RefusesAFolderThatHoldsSomething) {
  std::filesystem::create_directory(path("full"));
  std::ofstream(path("full/main.cpp")) << "mine";
  EXPECT_THAT(error({path("full").string()}), HasSubstr("the folder is not empty, it holds 'main.cpp'"));
  EXPECT_EQ(read_file(path("full/main.cpp")), "mine");
  std::ofstream(path("file")) << "x";
  EXPECT_THAT(error({path("file").string()}), HasSubstr("this is a file, not a folder"));
  EXPECT_THAT(error({(path("file") / "below").string()}), HasSubstr("[init] cannot write to"));
}

TEST_F(InitTest, RefusesNamesThatCMakeOrAShellWouldMisread) {
  for (const char* name : {"2net", "my net", "a;b", "test", "all", "$x", "-n"}) {
    EXPECT_THAT(error({path("new").string(), std::string("--name=") + name}),
                HasSubstr("a project's name begins with a letter"))
        << name;
  }
  EXPECT_FALSE(std::filesystem::exists(path("new")));
}

TEST_F(InitTest, AMissingFolderIsAnError) {
  EXPECT_THAT(error({}), HasSubstr("FOLDER is required; lockstep init --help"));
  EXPECT_THAT(error({path("x").string(), "--colour", "red"}), HasSubstr("lockstep init --help"));
}

}  // namespace
}  // namespace lockstep::cli
