#pragma once

#include <lockstep/image_files.h>

#include <filesystem>

namespace lockstep::images {

// Each opens what is at a place, and returns null where nothing of its format is there.
// What is there and broken is a ConfigError.

// The pair of IDX files in a folder whose names say the split: "train", or "t10k", "test"
// or "val". One of its files names the folder too.
ImageSet probe_idx(const std::filesystem::path& path, Split split, const ImageClasses& classes);
// A folder or an archive.
ImageSet probe_cifar10(const std::filesystem::path& path, Split split);
ImageSet probe_cifar100(const std::filesystem::path& path, Split split);

// An HDF5 file, or a folder with one whose name says the split, or with one alone.
ImageSet probe_hdf5(const std::filesystem::path& path, Split split);

// The same for a safetensors file, or two .npy files with "images" and "labels" in their names.
ImageSet probe_tensors(const std::filesystem::path& path, Split split);

// For messages.
inline constexpr char kFormats[] =
    "MNIST's IDX files, CIFAR's binary version as a folder or a tar archive, an HDF5 file (.h5, .hdf5), "
    "a safetensors file, two .npy files (images, labels), "
    "a folder of .jpg, .jpeg and .png pictures for each class";

// Any of the formats.
ImageSet probe_any(const std::filesystem::path& path, Split split);

}  // namespace lockstep::images
