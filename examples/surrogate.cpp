// A solver that uses MPI for itself and trains a surrogate of its most expensive function while it runs:
// nonlinear heat flow in a rod, whose cells are divided over the ranks. The flux q through a face is the root
// of q + q^3 / 10 = -(1 + u^2) du/dx, which costs an iteration for each face and step; the surrogate computes
// it from u and du/dx. The batches are the arrays of the solver: nothing is copied.
//
//   mpirun -n 2 surrogate [MODEL.pt2]
//
// The model takes two numbers for each face and returns one. Without a file it is a small network of
// LibTorch. Expected output, with an error that depends on the model:
//
//   Step 100: loss ...
//   ...
//   Surrogate: relative error 0.0... after 600 steps on 2 rank(s)

#include <lockstep/exported_model.h>
#include <lockstep/lockstep.h>
#include <lockstep/mpi.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

constexpr int kCells = 64;  // of a rank
constexpr int kSteps = 600;
constexpr float kCellWidth = 0.05F;
constexpr float kTimeStep = 2e-4F;

class Rod {
 public:
  explicit Rod(MPI_Comm ranks) : ranks_(ranks), cells_(kCells + 2), features_(2 * kFaces), fluxes_(kFaces) {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &size);
    left_ = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    right_ = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    for (int i = 0; i < kCells; ++i) {
      const auto place = static_cast<float>(rank * kCells + i) / static_cast<float>(size * kCells);
      cells_[static_cast<size_t>(i) + 1] = std::sin(12 * place) + place;
    }
  }

  // Also fills features() and fluxes(), of the state before the step.
  void step() {
    exchange_ends();
    for (size_t face = 0; face < kFaces; ++face) {
      const float u = (cells_[face] + cells_[face + 1]) / 2;
      const float slope = (cells_[face + 1] - cells_[face]) / kCellWidth;
      features_[2 * face] = u;
      features_[2 * face + 1] = slope;
      fluxes_[face] = flux_of(u, slope);
    }
    for (size_t i = 1; i + 1 < cells_.size(); ++i) {
      cells_[i] += kTimeStep / kCellWidth * (fluxes_[i - 1] - fluxes_[i]);
    }
  }

  // The solver's memory as tensors, [faces, 2] and [faces, 1].
  torch::Tensor features() { return torch::from_blob(features_.data(), {kFaces, 2}, torch::kFloat32); }
  torch::Tensor fluxes() { return torch::from_blob(fluxes_.data(), {kFaces, 1}, torch::kFloat32); }

 private:
  static constexpr int64_t kFaces = kCells + 1;

  // The neighbours' cells, or those of an isolated end.
  void exchange_ends() {
    cells_.front() = cells_[1];
    cells_.back() = cells_[kCells];
    MPI_Sendrecv(&cells_[kCells], 1, MPI_FLOAT, right_, 0, cells_.data(), 1, MPI_FLOAT, left_, 0, ranks_,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(&cells_[1], 1, MPI_FLOAT, left_, 1, &cells_[kCells + 1], 1, MPI_FLOAT, right_, 1, ranks_,
                 MPI_STATUS_IGNORE);
  }

  static float flux_of(float u, float slope) {
    const float wanted = -(1 + u * u) * slope;
    float flux = wanted;
    for (int i = 0; i < 50; ++i) {
      const float change = (flux + flux * flux * flux / 10 - wanted) / (1 + 0.3F * flux * flux);
      flux -= change;
      if (std::abs(change) < 1e-6F * (1 + std::abs(flux))) break;
    }
    return flux;
  }

  MPI_Comm ranks_;
  int left_ = MPI_PROC_NULL, right_ = MPI_PROC_NULL;
  std::vector<float> cells_;  // with a cell of each neighbour
  std::vector<float> features_, fluxes_;
};

void simulate(MPI_Comm ranks, lockstep::World& world, const lockstep::Model& model) {
  Rod rod(ranks);
  lockstep::GradientSync gradients(model.module(), world.communicator());
  torch::optim::Adam optimizer(model.module()->parameters(), 5e-3);
  for (int step = 1; step <= kSteps; ++step) {
    rod.step();
    gradients.zero_grad();
    gradients.prepare_forward();
    const torch::Tensor loss = torch::mse_loss(model(rod.features()), rod.fluxes());
    loss.backward();
    optimizer.step();
    if (world.is_main() && step % 100 == 0) std::printf("Step %d: loss %.4g\n", step, loss.item<double>());
  }
  const torch::NoGradGuard no_grad;
  std::array<double, 2> squares = {(model(rod.features()) - rod.fluxes()).square().sum().item<double>(),
                                   rod.fluxes().square().sum().item<double>()};
  MPI_Allreduce(MPI_IN_PLACE, squares.data(), 2, MPI_DOUBLE, MPI_SUM, ranks);
  if (world.is_main()) {
    std::printf("Surrogate: relative error %.4f after %d steps on %d rank(s)\n",
                std::sqrt(squares[0] / squares[1]), kSteps, world.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int status = lockstep::run_main([&] {
    const auto world = lockstep::mpi_world(MPI_COMM_WORLD, {.compute_setup = "cpu"});
    torch::manual_seed(0);
    lockstep::Model model =
        torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                              torch::nn::Tanh(), torch::nn::Linear(32, 1));
    if (argc > 1) model = lockstep::ExportedModel(argv[1]);
    simulate(MPI_COMM_WORLD, *world, model);
    return 0;
  });
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
