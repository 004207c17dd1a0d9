// Every operation of Communicator once, on the ranks of an MPI job.
//
//   mpirun -n N comm_operations BACKEND RENDEZVOUS_FILE
//
// Rank and size are those of OpenMPI's environment. Prints "ok BACKEND", or what
// went wrong and ends with status 1 (a wrong result), 2 (ConfigError), 3 (CommError).

#include <fmt/format.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace {

using lockstep::Communicator;
using lockstep::ReduceOp;

void expect(bool condition, const char* what) {
  if (!condition) {
    throw std::logic_error(what);
  }
}

at::Tensor sample(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) {
  return (torch::arange(numel) % 7 + rank + 1).to(dtype);
}

at::Tensor samples(int size, int64_t numel) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) {
    rows.push_back(sample(rank, numel));
  }
  return torch::stack(rows);
}

void check_reductions(Communicator& group) {
  const at::Tensor all = samples(group.size(), 1000);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong}) {
    const auto reduced = [&](ReduceOp op) {
      at::Tensor tensor = sample(group.rank(), 1000, dtype);
      group.all_reduce(tensor, op).wait();
      return tensor.to(at::kFloat);
    };
    expect(torch::equal(reduced(ReduceOp::kSum), all.sum(0)), "all_reduce sum");
    expect(torch::equal(reduced(ReduceOp::kMin), all.amin(0)), "all_reduce min");
    expect(torch::equal(reduced(ReduceOp::kMax), all.amax(0)), "all_reduce max");
    expect(torch::equal(reduced(ReduceOp::kProduct), all.prod(0)), "all_reduce product");
  }
  at::Tensor mean = sample(group.rank(), 1000);
  group.all_reduce(mean, ReduceOp::kMean).wait();
  expect(torch::allclose(mean, all.mean(0)), "all_reduce mean");

  const at::Tensor wide = samples(group.size(), group.size() * 10);
  at::Tensor block = torch::empty({10});
  group.reduce_scatter(block, wide[group.rank()].contiguous(), ReduceOp::kMean).wait();
  expect(torch::allclose(block, wide.mean(0).view({group.size(), 10})[group.rank()]), "reduce_scatter");
}

void check_movement(Communicator& group) {
  const int size = group.size();
  const at::Tensor all = samples(size, 50);
  at::Tensor tensor = sample(group.rank(), 50);
  group.broadcast(tensor, size - 1).wait();
  expect(torch::equal(tensor, all[size - 1]), "broadcast");

  at::Tensor gathered = torch::empty({size, 50});
  group.all_gather(gathered, sample(group.rank(), 50)).wait();
  expect(torch::equal(gathered, all), "all_gather");

  const bool is_root = group.rank() == size - 1;
  at::Tensor collected = is_root ? torch::empty({size, 50}) : at::Tensor();
  group.gather(collected, sample(group.rank(), 50), size - 1).wait();
  expect(!is_root || torch::equal(collected, all), "gather");

  at::Tensor part = torch::empty({50});
  group.scatter(part, is_root ? all : at::Tensor(), size - 1).wait();
  expect(torch::equal(part, all[group.rank()]), "scatter");

  const at::Tensor input = (torch::arange(size) + 100 * group.rank()).contiguous();
  at::Tensor output = torch::empty_like(input);
  group.all_to_all(output, input).wait();
  expect(torch::equal(output, torch::arange(size) * 100 + group.rank()), "all_to_all");

  expect(group.all_gather_bytes(std::string(static_cast<size_t>(group.rank()), 'x')).back().size() ==
             static_cast<size_t>(size - 1),
         "all_gather_bytes");
  at::Tensor flags = torch::full({3}, is_root, at::kBool);
  group.broadcast(flags, size - 1).wait();
  expect(flags.all().item<bool>(), "broadcast of bool");
}

void check_messages_and_subgroups(Communicator& group) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  at::Tensor received = torch::empty({3000});
  lockstep::Work receive = group.recv(received, previous, 5);
  group.send(sample(group.rank(), 3000), next, 5).wait();
  receive.wait();
  expect(torch::equal(received, sample(previous, 3000)), "send and recv");

  auto alone = group.subgroup({group.size() - 1});
  expect(alone.has_value() == (group.rank() == group.size() - 1), "subgroup of one");
  std::vector<int> reversed;
  for (int rank = group.size() - 1; rank >= 0; --rank) {
    reversed.push_back(rank);
  }
  auto mirror = group.subgroup(reversed);
  at::Tensor ranks = torch::empty({group.size()}, at::kLong);
  mirror->all_gather(ranks, torch::tensor({group.rank()})).wait();
  expect(torch::equal(ranks, torch::tensor(std::vector<int64_t>(reversed.begin(), reversed.end()))),
         "subgroup");
  group.barrier();
}

int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    return 64;
  }
  lockstep::RankMap map;
  map.rank = number("OMPI_COMM_WORLD_RANK");
  map.world_size = number("OMPI_COMM_WORLD_SIZE");
  map.rendezvous.kind = lockstep::Rendezvous::Kind::kFile;
  map.rendezvous.path = argv[2];
  lockstep::CommunicatorOptions options;
  options.backend = argv[1];
  options.timeout = std::chrono::seconds(60);
  options.connect_timeout = std::chrono::seconds(60);
  try {
    Communicator group = Communicator::connect(map, options);
    check_reductions(group);
    check_movement(group);
    check_messages_and_subgroups(group);
    std::puts(("ok " + group.backend()).c_str());
    return 0;
  } catch (const lockstep::ConfigError& error) {
    std::puts(error.what());
    return 2;
  } catch (const lockstep::CommError& error) {
    std::puts(error.what());
    return 3;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}
