#pragma once

// What the entry functions of tests/support/fuzz share. One entry function for each reader of
// bytes that we did not write:
//
//   bool takes_NAME(std::string_view bytes);   in {core,torch}/NAME.h, namespace lockstep::fuzz
//
// true: the reader takes the bytes; false: it refuses them as its header says. Everything else is
// a finding: another exception, a broken rule (FuzzFinding), a signal, a sanitizer's report.
// Unit tests call it with tests/fuzz/NAME and mutations of that, libFuzzer with what it makes
// (script/test --fuzz).

#include <stdexcept>
#include <string>

namespace lockstep::fuzz {

// A reader took bytes and broke a rule of its own. It is not among the errors of readers, so it
// fails a test and ends a fuzzer.
class FuzzFinding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, const std::string& rule) {
  if (!holds) throw FuzzFinding(rule);
}

}  // namespace lockstep::fuzz
