#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::images {

// The pickle is broken, or not one of CIFAR.
class CifarPickleError : public std::runtime_error {
 public:
  CifarPickleError(size_t offset_, const std::string& reason) : std::runtime_error(reason), offset(offset_) {}

  size_t offset;  // in the file
};

// A file of CIFAR's Python version: a pickled dict of a NumPy array, labels and names.
struct CifarPickle {
  // Of the array `data`, [count, row_bytes] unsigned bytes; refers to the file. Empty: there is none.
  std::span<const uint8_t> data;
  int64_t count = 0;
  int64_t row_bytes = 0;
  std::vector<int64_t> labels;     // of the list that was asked for; empty: there is none
  std::vector<std::string> names;  // the same for the list of names
};

// Reads the dict with the lists under these keys. Understands the instructions that pickle and cPickle
// write for dicts, lists, tuples, integers, texts and NumPy arrays of bytes. Calls nothing: an object
// of another class has no value. Memory is proportional to the file.
CifarPickle parse_cifar_pickle(std::span<const uint8_t> file, std::string_view labels_key,
                               std::string_view names_key);

}  // namespace lockstep::images
