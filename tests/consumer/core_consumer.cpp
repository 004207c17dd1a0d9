// What a program that never touches a tensor sees: no LibTorch header, no LibTorch
// library.
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <lockstep/version.h>

#include <cstdio>

int main() {
  try {
    throw lockstep::ConfigError("consumer", "thrown on purpose");
  } catch (const lockstep::Error& error) {
    std::printf("Lockstep %s: %s\n", lockstep::kVersion, error.what());
  }
  return lockstep::RankMap{}.world_size == 1 ? 0 : 1;
}
