// What a program that never touches a tensor sees: no LibTorch header, no LibTorch
// library.
#include <lockstep/error.h>
#include <lockstep/image_files.h>
#include <lockstep/rank_map.h>
#include <lockstep/version.h>

#include <cstdio>

int main() {
  try {
    throw lockstep::ConfigError("consumer", "thrown on purpose");
  } catch (const lockstep::Error& error) {
    std::printf("Lockstep %s: %s\n", lockstep::kVersion, error.what());
  }
  // The readers of image sets, with the libraries that they need.
  const lockstep::ImageSet images = lockstep::find_image_set("mnist", "synthetic", lockstep::Split::kTest);
  std::printf("%lld images\n", static_cast<long long>(images->size()));
  return lockstep::RankMap{}.world_size == 1 && images->size() == 10'000 ? 0 : 1;
}
