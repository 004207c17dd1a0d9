#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cli {

// The parts that belong to the running program, and the LibTorch that they use. Nothing here loads LibTorch.
//
// In a build folder lockstep-tensor is beside `lockstep` and knows its LibTorch. An installation has one
// lockstep-tensor for each supported minor version, PREFIX/lib/lockstep/torch-2.15/lockstep-tensor, because
// classes of LibTorch change between them; the plugins for that version are in the same folder.

struct TorchFolder {
  std::filesystem::path folder;  // has lib/libtorch_cpu.so
  std::string version;           // "2.15.0"

  std::string minor() const;  // "2.15"
};

struct TensorProgram {
  std::filesystem::path program;
  // What the program must be given as LD_LIBRARY_PATH; nullopt: it knows where its LibTorch is.
  std::optional<std::filesystem::path> torch_libraries;
};

struct Installation {
  std::filesystem::path program;  // bin/lockstep

  // Where it is installed: the folder of bin. ConfigError: in a build folder.
  std::filesystem::path prefix() const;
  // Whether find_package(Lockstep) finds it in prefix().
  bool has_cmake_package() const;
  // "2.11", "2.15": the versions that an installation has programs for.
  std::vector<std::string> torch_versions() const;

  // The LibTorch of the first of: LOCKSTEP_TORCH_DIR, the one that the build was configured with, Python's
  // packages in the prefix, the torch that python3 imports. A version without a program is skipped. May run
  // python3, which takes some 50 ms.
  // nullopt: none. ConfigError: LOCKSTEP_TORCH_DIR has no LibTorch, or one without a program.
  std::optional<TorchFolder> find_torch(const base::Environment& environment) const;

  // The program with LibTorch. ConfigError: as above, or no LibTorch was found; the text says how to get one.
  TensorProgram tensor_program(const base::Environment& environment) const;

  // The plugins that programs of this installation would load with this LibTorch, by name: "mpi", "cuda".
  std::vector<std::string> plugins(const base::Environment& environment,
                                   const std::optional<TorchFolder>& torch) const;

 private:
  struct Search {
    std::optional<TorchFolder> found;
    std::optional<TorchFolder> skipped;  // the first that this installation has no program for
  };

  bool is_build_folder() const;
  std::filesystem::path folder_of_version(const std::string& minor) const;
  bool has_program_for(const TorchFolder& torch) const;
  Search search(const base::Environment& environment) const;
};

// The installation of the running program.
Installation own_installation();

// The LibTorch in a folder; nullopt: it has none.
std::optional<TorchFolder> read_torch_folder(const std::filesystem::path& folder);

// `lockstep --version`: version, commit, LibTorch, plugins, a line each.
std::string version_text(const Installation& installation, const base::Environment& environment);

}  // namespace lockstep::cli
