#pragma once

#include <span>
#include <string>

namespace lockstep::test {

// A DeepSpeed configuration for CPUs, each of another shape: with two ranks a batch of four
// on each of them, and of any size where it is "auto".
struct DeepSpeedFile {
  const char* name;
  const char* text;
};

std::span<const DeepSpeedFile> deepspeed_files();

// The file of LUMI's own repository, commas and all: a batch of 32 over all ranks.
std::string lumis_repository_file();

}  // namespace lockstep::test
