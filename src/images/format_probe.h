#pragma once

#include <lockstep/image_files.h>

#include <filesystem>

namespace lockstep::images {

// Each opens what is at a place, and returns null where nothing of its format is there.
// What is there and broken is a ConfigError.

// The pair of IDX files in a folder whose names say the split: "train", or "t10k" or "test".
ImageSet probe_idx(const std::filesystem::path& folder, Split split, const IdxClasses& classes);
// A folder or an archive.
ImageSet probe_cifar10(const std::filesystem::path& path, Split split);
ImageSet probe_cifar100(const std::filesystem::path& path, Split split);

// For messages.
inline constexpr char kFormats[] = "IDX files (MNIST), CIFAR's binary version as a folder or a tar archive";

// Any of the formats.
ImageSet probe_any(const std::filesystem::path& path, Split split);

}  // namespace lockstep::images
