#pragma once

// A test of entry functions (tests/support/fuzz) over their corpora.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>

#include "support/fuzz.h"

namespace lockstep::test {

struct CorpusCase {
  const char* name;  // of the folder in tests/fuzz
  bool (*takes)(std::string_view bytes);
  std::string_view spice;  // text that mutations put in somewhere
  int mutations_per_file = 300;
};

inline void PrintTo(const CorpusCase& value, std::ostream* out) { *out << value.name; }

// Whatever else than true or false comes out of an entry function fails the test.
class CorpusTest : public testing::TestWithParam<CorpusCase> {
 protected:
  void expect_what_names_say() {
    for (const FuzzFile& file : fuzz_corpus(GetParam().name)) {
      EXPECT_NO_THROW(EXPECT_EQ(GetParam().takes(file.bytes), !file.is_hostile()) << file.name) << file.name;
    }
  }

  void read_mutations() {
    int taken = 0, refused = 0;
    for_each_mutation(fuzz_corpus(GetParam().name), GetParam().mutations_per_file, GetParam().spice, 20261116,
                      [&](const std::string& bytes) { ++(GetParam().takes(bytes) ? taken : refused); });
    EXPECT_GT(taken, 0) << "too wild to reach anything";
    EXPECT_GT(refused, 0);
  }
};

}  // namespace lockstep::test
