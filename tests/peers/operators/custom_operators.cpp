// A library of operators as users write them, for tests of --operators: one with an autograd formula, one
// without, and one that is a composition of others. Python and Lockstep load the same file.

#include <torch/library.h>
#include <torch/torch.h>

namespace {

at::Tensor scaled_square(const at::Tensor& x, double factor) { return x * x * factor; }

class ScaledSquare : public torch::autograd::Function<ScaledSquare> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double factor) {
    context->save_for_backward({x});
    context->saved_data["factor"] = factor;
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("lockstep_test::scaled_square", "")
                                      .typed<at::Tensor(const at::Tensor&, double)>();
    return operation.call(x, factor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * x * (2 * context->saved_data["factor"].toDouble()), at::Tensor()};
  }
};

at::Tensor scaled_square_with_gradient(const at::Tensor& x, double factor) {
  return ScaledSquare::apply(x, factor);
}

at::Tensor signs(const at::Tensor& x) { return x.sign(); }

at::Tensor plus_one(const at::Tensor& x) { return x + 1; }

}  // namespace

TORCH_LIBRARY(lockstep_test, library) {
  library.def("scaled_square(Tensor x, float factor) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("signs(Tensor x) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("plus_one(Tensor x) -> Tensor", plus_one);
}

TORCH_LIBRARY_IMPL(lockstep_test, CompositeExplicitAutograd, library) {
  library.impl("scaled_square", scaled_square);
  library.impl("signs", signs);
}

TORCH_LIBRARY_IMPL(lockstep_test, Autograd, library) {
  library.impl("scaled_square", scaled_square_with_gradient);
}
