#include "cli/installation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

// An installation for two versions of LibTorch that do not exist.
class InstallationTest : public testing::Test {
 protected:
  InstallationTest() {
    put("prefix/bin/lockstep", "");
    put("prefix/lib/lockstep/torch-9.10/lockstep-tensor", "");
    put("prefix/lib/lockstep/torch-9.9/lockstep-tensor", "");
  }

  fs::path put(const fs::path& path, const std::string& text) {
    fs::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
    return folder_.path() / path;
  }
  fs::path make_torch(const fs::path& path, const std::string& minor) {
    put(path / "lib/libtorch_cpu.so", "");
    put(path / "include/torch/headeronly/version.h",
        "#pragma once\n\n#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR " + minor +
            "\n#define TORCH_VERSION_PATCH 1\n#define TORCH_VERSION_ABI_TAG 0\n#define TORCH_VERSION "
            "\"x\"\n");
    return folder_.path() / path;
  }
  // A PATH whose python3 imports the torch in this folder.
  base::Environment with_python(const fs::path& torch) {
    const fs::path python = put("python/python3", "#!/bin/sh\necho '" + torch.string() + "'\n");
    fs::permissions(python, fs::perms::owner_all);
    return {{"PATH", python.parent_path().string()}};
  }
  std::string problem(const base::Environment& environment) const {
    try {
      installation().tensor_program(environment);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  Installation installation() const { return {folder_.path() / "prefix/bin/lockstep"}; }

  test::TemporaryFolder folder_;
};

TEST_F(InstallationTest, ListsItsVersionsByNumber) {
  EXPECT_THAT(installation().torch_versions(), ElementsAre("9.9", "9.10"));
  EXPECT_EQ(installation().prefix(), folder_.path() / "prefix");
}

TEST_F(InstallationTest, TheVariableComesFirstThenThePrefixThenPython) {
  const fs::path variable = make_torch("variable", "9");
  const fs::path prefix = make_torch("prefix/lib/python3.11/site-packages/torch", "10");
  const fs::path python = make_torch("elsewhere/torch", "9");
  base::Environment environment = with_python(python);

  TensorProgram found = installation().tensor_program(environment);
  EXPECT_EQ(found.program, folder_.path() / "prefix/lib/lockstep/torch-9.10/lockstep-tensor");
  EXPECT_EQ(found.torch_libraries, prefix / "lib");

  environment.set("LOCKSTEP_TORCH_DIR", variable.string());
  found = installation().tensor_program(environment);
  EXPECT_EQ(found.program, folder_.path() / "prefix/lib/lockstep/torch-9.9/lockstep-tensor");
  EXPECT_EQ(found.torch_libraries, variable / "lib");
  EXPECT_EQ(installation().find_torch(environment)->version, "9.9.1");

  fs::remove_all(prefix);
  EXPECT_EQ(installation().find_torch(with_python(python))->folder, python);
}

TEST_F(InstallationTest, AVersionWithoutAProgramIsPassedOver) {
  make_torch("prefix/lib/python3.11/site-packages/torch", "8");
  const fs::path python = make_torch("elsewhere/torch", "9");
  EXPECT_EQ(installation().find_torch(with_python(python))->folder, python);
}

TEST_F(InstallationTest, ErrorsSayWhatIsThereAndWhatIsNeeded) {
  EXPECT_EQ(problem({{"PATH", ""}}),
            "[cli] this command needs one of LibTorch 9.9, 9.10, but none was found: pip install "
            "'torch==9.10.*', or "
            "set LOCKSTEP_TORCH_DIR to the folder of an installed torch");
  const fs::path unsuitable = make_torch("elsewhere/torch", "8");
  EXPECT_THAT(problem(with_python(unsuitable)),
              HasSubstr("but '" + unsuitable.string() + "' is 9.8.1: pip install"));
  // Where LibTorch had the header before 2.10.
  const fs::path old = make_torch("old", "7");
  fs::create_directories(old / "include/torch/csrc/api/include/torch");
  fs::rename(old / "include/torch/headeronly/version.h",
             old / "include/torch/csrc/api/include/torch/version.h");
  EXPECT_EQ(problem({{"LOCKSTEP_TORCH_DIR", old.string()}}),
            "[cli] LOCKSTEP_TORCH_DIR has LibTorch 9.7.1, and this installation needs one of LibTorch 9.9, "
            "9.10: '" +
                old.string() + "'; set it to another folder, or unset it");
  EXPECT_THAT(
      problem({{"LOCKSTEP_TORCH_DIR", "/nonexistent"}}),
      HasSubstr("LOCKSTEP_TORCH_DIR has no LibTorch (include and lib/libtorch_cpu.so): '/nonexistent'"));
}

TEST_F(InstallationTest, AProgramThatAnEarlierInstallationLeftIsNotUsed) {
  put("prefix/bin/lockstep-tensor", "");
  make_torch("prefix/lib64/python3.11/site-packages/torch", "9");
  EXPECT_EQ(installation().tensor_program({{"PATH", ""}}).program,
            folder_.path() / "prefix/lib/lockstep/torch-9.9/lockstep-tensor");
  EXPECT_EQ(installation().prefix(), folder_.path() / "prefix");
}

TEST_F(InstallationTest, ABuildFolderHasItsProgramBesideItself) {
  fs::remove_all(folder_.path() / "prefix/lib");
  const fs::path tensor = put("prefix/bin/lockstep-tensor", "");
  const TensorProgram found = installation().tensor_program({{"PATH", ""}});
  EXPECT_EQ(found.program, tensor);
  EXPECT_FALSE(found.torch_libraries);
  EXPECT_THROW(installation().prefix(), ConfigError);
}

TEST_F(InstallationTest, TheVersionNamesCommitLibTorchAndPlugins) {
  const fs::path torch = make_torch("variable", "9");
  put("prefix/lib/lockstep/torch-9.9/liblockstep_mpi.so", "");
  put("prefix/lib/lockstep/torch-9.10/liblockstep_cuda.so", "");
  const std::string text = version_text(installation(), {{"LOCKSTEP_TORCH_DIR", torch.string()}});
  EXPECT_THAT(text, testing::ContainsRegex("^lockstep [0-9.]+\ncommit    (unknown|[0-9a-f]+\\+?)\n"));
  EXPECT_THAT(text, HasSubstr("LibTorch  9.9.1 in " + torch.string() + "\nplugins   mpi\n"));
  EXPECT_THAT(version_text(installation(), {{"PATH", ""}}),
              HasSubstr("LibTorch  not found\nplugins   none\n"));
}

}  // namespace
}  // namespace lockstep::cli
