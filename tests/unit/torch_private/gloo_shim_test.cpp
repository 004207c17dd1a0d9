// What src/torch_private/gloo_shim assumes of the Gloo inside LibTorch.

#include <cxxabi.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <typeinfo>

namespace lockstep {
namespace {

const std::type_info* type_in_libtorch(const char* symbol) {
  return static_cast<const std::type_info*>(::dlsym(RTLD_DEFAULT, symbol));
}

// abort() of the Gloo backend turns a pointer to the one into a pointer to the other.
TEST(GlooShim, TcpPairBeginsWithTransportPair) {
  const std::type_info* pair = type_in_libtorch("_ZTIN4gloo9transport4PairE");
  const std::type_info* tcp_pair = type_in_libtorch("_ZTIN4gloo9transport3tcp4PairE");
  ASSERT_NE(pair, nullptr);
  ASSERT_NE(tcp_pair, nullptr);
  const auto* bases = dynamic_cast<const abi::__vmi_class_type_info*>(tcp_pair);
  ASSERT_NE(bases, nullptr) << "not a class with several bases";
  EXPECT_EQ(*bases->__base_info[0].__base_type, *pair);
  EXPECT_EQ(bases->__base_info[0].__offset(), 0);
  EXPECT_FALSE(bases->__base_info[0].__is_virtual_p());
}

}  // namespace
}  // namespace lockstep
