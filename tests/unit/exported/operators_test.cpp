#include "exported/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "exported/program.h"

namespace lockstep::exported {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

OperatorName aten(const std::string& name) { return *operator_name("torch.ops.aten." + name); }

TEST(ExportedOperatorsTest, RefusesInternalOperatorsButThoseOfExports) {
  for (const char* name :
       {"_reshape_alias.default", "_print.default", "_sobol_engine_draw.default", "_sobol_engine_ff_.default",
        "_sobol_engine_scramble_.default", "_index_put_impl_.default", "_fused_dropout.default",
        "_nested_view_from_buffer.default", "_sparse_coo_tensor_unsafe.default", "_resize_output_.default",
        "_cudnn_rnn.default", "_flash_attention_forward.default", "_cufft_set_plan_cache_max_size.default"}) {
    EXPECT_THAT(refusal_of(aten(name)).value_or(""), HasSubstr("internal operator of LibTorch")) << name;
  }
  for (const char* name :
       {"_softmax.default", "_log_softmax.default", "_to_copy.default", "_unsafe_view.default",
        "__and__.Tensor", "_native_batch_norm_legit_functional.default",
        "_native_batch_norm_legit_no_training.default", "_scaled_dot_product_flash_attention_for_cpu.default",
        "_adaptive_avg_pool2d.default", "_weight_norm.default", "_fft_r2c.default",
        "_assert_tensor_metadata.default"}) {
    EXPECT_EQ(refusal_of(aten(name)), std::nullopt) << name;
  }
  EXPECT_EQ(refusal_of(aten("_batch_norm_with_update.default")), "evaluation mode cannot turn it off");
}

TEST(ExportedOperatorsTest, EvaluationSwitchesEveryFormOfDropoutAndBatchNorm) {
  const auto switched = [](const char* name) {
    const auto found = evaluation_switch(aten(name));
    return found ? found->argument : "";
  };
  for (const char* name :
       {"scaled_dot_product_attention.default", "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_scaled_dot_product_efficient_attention.default", "_scaled_dot_product_cudnn_attention.default",
        "_scaled_dot_product_attention_math.default",
        "_scaled_dot_product_fused_attention_overrideable.default"}) {
    EXPECT_EQ(switched(name), "dropout_p") << name;
  }
  for (const char* name :
       {"batch_norm.default", "miopen_batch_norm.default", "_native_batch_norm_legit.default",
        "_native_batch_norm_legit_functional.default"}) {
    EXPECT_EQ(switched(name), "training") << name;
  }
  EXPECT_EQ(switched("native_dropout.default"), "train");
  EXPECT_TRUE(only_evaluates(aten("_native_batch_norm_legit_no_training.default")));
  EXPECT_FALSE(only_evaluates(aten("_native_batch_norm_legit.default")));
}

// Calls an operator of LibTorch as a program does.
std::vector<c10::IValue> call(const char* name, const char* overload, std::vector<c10::IValue> stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  return stack;
}

TEST(ExportedOperatorsTest, KnowsOperatorsOfLibTorchWithoutAFormula) {
  const auto formula = [](const char* name, const char* overload) {
    return has_gradient(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
  };
  EXPECT_TRUE(formula("aten::mul", "Tensor"));
  EXPECT_TRUE(formula("aten::linear", ""));
  EXPECT_TRUE(formula("aten::_native_batch_norm_legit_functional", ""));
  EXPECT_FALSE(formula("aten::copy", ""));
  EXPECT_FALSE(formula("aten::floor_divide", ""));
  // A LibTorch that has a formula for one of these needs it no more in the list.
  const at::Tensor x = torch::ones({2}, torch::requires_grad());
  for (const auto& [name, arguments] : std::vector<std::pair<const char*, std::vector<c10::IValue>>>{
           {"aten::copy", {x, x, false}}, {"aten::floor_divide", {x, x}}, {"aten::heaviside", {x, x}}}) {
    const at::Tensor result = call(name, "", arguments)[0].toTensor();
    EXPECT_THAT([&] { result.sum().backward(); }, ThrowsMessage<c10::Error>(HasSubstr("is not implemented")))
        << name;
  }
}

TEST(ExportedOperatorsTest, ChecksArgumentsThatLibTorchDoesNotCheck) {
  const auto expect_wrong = [](const char* name, const std::vector<c10::IValue>& arguments,
                               const std::string& reason) {
    const ArgumentCheck check = argument_check(aten(name));
    ASSERT_NE(check, nullptr) << name;
    EXPECT_THAT([&] { check(arguments); }, ThrowsMessage<ProgramError>(HasSubstr(reason))) << name;
  };
  const auto expect_right = [](const char* name, const std::vector<c10::IValue>& arguments) {
    EXPECT_NO_THROW(argument_check(aten(name))(arguments)) << name;
  };
  const at::Tensor x = torch::ones({4, 3});
  const at::Tensor three = torch::ones({3});
  const at::Tensor one = torch::ones({1});
  const c10::IValue none;
  expect_right("_native_batch_norm_legit_functional.default",
               {x, three, none, three, three, true, 0.1, 1e-5});
  expect_wrong("_native_batch_norm_legit_functional.default", {x, three, none, one, three, true, 0.1, 1e-5},
               "has not one element for each channel");
  expect_right("_native_batch_norm_legit.no_stats", {x, three, three, true, 0.1, 1e-5});
  expect_wrong("native_batch_norm.default", {one, one, one, one, one, true, 0.1, 1e-5},
               "less than two dimensions");
  expect_right("_weight_norm.default", {x, torch::ones({4, 1}), 0});
  expect_wrong("_weight_norm.default", {x, one, 0}, "not one length for each index");
  const auto dimensions = [](std::vector<int64_t> list) { return c10::IValue(std::move(list)); };
  expect_right("_fft_c2c.default", {x, dimensions({1, 0}), 0, true});
  expect_wrong("_fft_c2c.default", {x, dimensions({2}), 0, true}, "a dimension that the input does not have");
  expect_wrong("_fft_c2c.default", {x, dimensions({1, 1}), 0, true}, "or one twice");
  expect_wrong("_fft_r2c.default", {x, dimensions({}), 0, true}, "it transforms no dimension");
  expect_right("_fft_c2r.default", {x, dimensions({1}), 0, 4});
  expect_wrong("_fft_c2r.default", {x, dimensions({1}), 0, 40}, "not the half of the size");
  const at::Tensor query = torch::ones({2, 4, 5, 8});
  const at::Tensor key = torch::ones({2, 2, 7, 8});
  expect_right("_scaled_dot_product_flash_attention_for_cpu.default", {query, key, key});
  expect_wrong("_scaled_dot_product_flash_attention_for_cpu.default", {query, key, key.narrow(2, 0, 3)},
               "do not fit each other");
  EXPECT_EQ(argument_check(aten("linear.default")), nullptr);
}

}  // namespace
}  // namespace lockstep::exported
