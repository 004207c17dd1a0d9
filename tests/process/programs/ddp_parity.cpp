// ddp_parity FOLDER: trains every parity case with two ranks and writes FOLDER/CASE.bin,
// for a comparison with a live PyTorch (tests/peers/test_ddp_parity.py).

#include <fstream>
#include <iostream>

#include "support/parity_training.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: ddp_parity FOLDER\n";
    return 2;
  }
  lockstep::test::use_portable_kernels();
  for (const std::string& name : lockstep::test::parity_cases()) {
    std::ofstream file(std::string(argv[1]) + "/" + name + ".bin", std::ios::binary);
    file << lockstep::test::train_parity_case(name);
    if (!file) {
      std::cerr << "cannot write to " << argv[1] << "\n";
      return 1;
    }
  }
  return 0;
}
