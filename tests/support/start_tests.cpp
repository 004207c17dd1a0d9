// Runs before main() of every test program with LibTorch, which does not call run_main().

#include "torch_private/onednn.h"

namespace lockstep::test {
namespace {

// Programs that a test starts inherit the variable that this call sets.
[[maybe_unused]] const bool kAvoidsAmx = torch_private::avoid_undescribed_amx();

}  // namespace
}  // namespace lockstep::test
