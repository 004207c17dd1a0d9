// The arithmetic, in float32 and in this order, is that of perceptrain if PyTorch's default dtype is float32:
// the contents and their maximum have the same bits for the same walk. The bounds differ by the rounding of
// the inverse normal distribution.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/landscape.h>
#include <lockstep/search.h>
#include <torch/torch.h>

#include <cmath>

#include "base/log.h"

namespace lockstep {
namespace {

constexpr double kTransitions = 6;  // between the signs -1, 0 and 1
constexpr double kLeastProbability = 1e-4;

// Restores the parameters of a model, also after an exception.
class SavedParameters {
 public:
  explicit SavedParameters(torch::nn::Module& module) : module_(module), saved_(get_parameters(module)) {}
  ~SavedParameters() { set_parameters(module_, saved_); }
  SavedParameters(const SavedParameters&) = delete;
  SavedParameters& operator=(const SavedParameters&) = delete;

 private:
  torch::nn::Module& module_;
  const at::Tensor saved_;
};

at::Tensor walk_of(const InformationContentOptions& options, int64_t parameters) {
  at::Tensor walk = options.variations;
  if (!walk.defined()) {
    at::Generator generator = torch::make_generator<at::CPUGeneratorImpl>(options.seed);
    walk =
        torch::empty({options.variation_multiple * parameters, parameters}).uniform_(0, 2 * M_PI, generator);
  }
  if (walk.dim() != 2 || walk.size(0) < 3 || walk.size(1) != parameters) {
    throw ConfigError("train", fmt::format("the walk of an InformationContent needs at least 3 points of {} "
                                           "parameters: it has [{}]",
                                           parameters, fmt::join(walk.sizes(), ", ")));
  }
  return walk;
}

at::Tensor losses_at(const at::Tensor& walk, const Model& model, const Loss& loss, const Batch& batch) {
  const torch::NoGradGuard no_grad;
  torch::nn::Module& module = *model.module();
  const SavedParameters saved(module);
  at::Tensor losses = torch::zeros({walk.size(0)});
  for (int64_t i = 0; i < walk.size(0); ++i) {
    set_parameters(module, walk[i]);
    losses[i] = loss(batch, model).loss.detach().cpu();
  }
  return losses;
}

// Probabilities of the six changes of sign, [epsilons, 6].
at::Tensor change_probabilities(const at::Tensor& signs) {
  using torch::indexing::Slice;
  const at::Tensor current = signs.index({Slice(), Slice(0, -1)});
  const at::Tensor next = signs.index({Slice(), Slice(1)});
  std::vector<at::Tensor> counts;
  for (const auto& [from, to] : {std::pair(1, 0), {1, -1}, {0, 1}, {0, -1}, {-1, 0}, {-1, 1}}) {
    counts.push_back(((current == from) & (next == to)).sum(1));
  }
  return torch::stack(counts, 1).to(torch::kFloat) / current.size(1);
}

// The probability of four of the changes with which the content has this value: the solution of
// H = 4 h(x) + 2 h(1/2 - 2x) on a grid.
double q_of(double content) {
  const at::Tensor x = torch::linspace(0.001, 0.16667, 10000);
  const at::Tensor log6 = torch::log(torch::tensor(static_cast<int64_t>(kTransitions)));
  const at::Tensor h = -4 * x * torch::log(x) / log6 - 2 * (0.5 - 2 * x) * torch::log(0.5 - 2 * x) / log6;
  return x[torch::abs(h - content).argmin().item<int64_t>()].item<double>();
}

double inverse_normal(double probability) {
  return torch::special::ndtri(torch::tensor(probability, torch::kDouble)).item<double>();
}

}  // namespace

InformationContent::InformationContent(const Model& model, const Loss& loss, const Batch& batch,
                                       const at::Tensor& epsilons, const InformationContentOptions& options)
    : epsilons_(epsilons.detach().cpu().to(torch::kFloat).flatten()),
      parameters_(num_parameters(*model.module())) {
  if (epsilons_.numel() == 0)
    throw ConfigError("train", "an InformationContent needs thresholds: epsilons is empty");
  const torch::NoGradGuard no_grad;
  const at::Tensor walk = walk_of(options, parameters_);
  const at::Tensor losses = losses_at(walk, model, loss, batch);
  using torch::indexing::Slice;
  const at::Tensor steps = torch::norm(walk.index({Slice(1)}) - walk.index({Slice(0, -1)}), 2, 1) + 1e-8;
  const at::Tensor slopes = ((losses.index({Slice(1)}) - losses.index({Slice(0, -1)})) / steps).unsqueeze(0);
  const at::Tensor limits = epsilons_.unsqueeze(1);
  const at::Tensor signs = (slopes > limits).to(torch::kFloat) - (slopes < -limits).to(torch::kFloat);
  const at::Tensor probabilities = change_probabilities(signs);
  const at::Tensor terms =
      torch::where(probabilities > kLeastProbability, -probabilities * torch::log(probabilities),
                   torch::zeros_like(probabilities));
  values_ = terms.sum(1) / torch::log(torch::tensor(static_cast<float>(kTransitions)));
}

MaximalContent InformationContent::maximum() const {
  const int64_t index = values_.argmax().item<int64_t>();
  return {values_[index].item<double>(), epsilons_[index].item<double>()};
}

GradientBounds InformationContent::gradient_bounds() const {
  const auto [content, epsilon] = maximum();
  if (content < std::log(2.0) / std::log(kTransitions)) {
    base::log_warning("train",
                      "the bounds of the gradient may be wrong: the maximal information content is {:.3g}, "
                      "below log_6(2); try other epsilons",
                      content);
  }
  const double q = q_of(content);
  const double scale = epsilon * std::sqrt(static_cast<double>(parameters_));
  return {scale / inverse_normal(1 - 2 * q), scale / inverse_normal(0.5 * (1 + 2 * q))};
}

double InformationContent::sensitivity(double eta) const {
  const at::Tensor below = epsilons_.masked_select(values_ < eta);
  if (below.numel() > 0) return below.min().item<double>();
  throw ConfigError("train",
                    fmt::format("no epsilon has an information content below eta = {}: the least is {:.3g}; "
                                "add larger epsilons",
                                eta, values_.min().item<double>()));
}

double InformationContent::sensitivity_bound(double eta) const {
  return sensitivity(eta) * std::sqrt(static_cast<double>(parameters_)) / inverse_normal(1 - 3 * eta / 2);
}

IcGradBounds get_ic_grad_bounds(const InformationContent& content, double eta) {
  const GradientBounds bounds = content.gradient_bounds();
  return {bounds.lower, bounds.upper, content.sensitivity_bound(eta)};
}

}  // namespace lockstep
